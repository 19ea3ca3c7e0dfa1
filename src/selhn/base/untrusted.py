"""Untrusted files: reads are bounded, nothing is executed, errors name the file and line."""

import io
import json
import math
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from selhn.base.errors import Damaged, NotFound, SelhnError

# Captions of COCO are 30 MB, its Karpathy file 140 MB; a projection is under 10 MB.
MAX_TEXT_BYTES = 2**30
MAX_PROJECTION_BYTES = 256 * 2**20
# numpy evaluates the header of an array as a Python literal, and raises what that raises.
_BAD_LITERAL = (
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError),
    *(RecursionError, MemoryError, TokenError),
)


def require_file(path: Path) -> None:
    """Refuse a path that is not a plain file (a pipe would make the reader wait forever)."""
    if not path.is_file():
        raise NotFound(f"{path} is missing or not a file: put it there, or give the folder that holds it")


def some(numbers: Sequence[int], most: int = 5) -> str:
    """The first few numbers as text: "3, 4, 5, 6, 7 and 20 more"."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _read_header(file: io.BufferedIOBase, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype from a .npy header; leaves the file at its first number."""
    try:
        with warnings.catch_warnings():
            # numpy warns about headers written by Python 2, which the well-known feature files have.
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(file)
            readers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, fortran, dtype = readers[version](file)
    except _BAD_LITERAL as broken:
        raise Damaged(
            f"{path} is not a .npy array ({type(broken).__name__}: {str(broken)[:120]}): "
            "write it with numpy.save, or copy it again"
        ) from None
    if dtype.hasobject:
        raise SelhnError(
            f"{path} holds Python objects (pickle), which can run code when they are read: "
            "if you trust it, load it yourself and save numbers: numpy.save(path, array.astype('float32'))"
        )
    if min(shape, default=0) < 1:
        raise SelhnError(f"{path} is an array of shape {shape}, which holds nothing: write it again")
    return shape, fortran, dtype


def _check_length(path: Path, promised: int, present: int) -> None:
    if promised != present:
        state = "is cut off" if present < promised else "continues after its end"
        raise Damaged(
            f"{path} {state}: its header promises {promised:,} bytes and there are {present:,}: "
            "copy or download it again"
        )


def open_array(path: Path, kinds: str = "f", dims: Sequence[int] = (2, 3)) -> npt.NDArray[Any]:
    """A .npy file mapped into memory, read-only; `kinds` are numpy's letters (f: floats, i, u: integers)."""
    require_file(path)
    with path.open("rb") as file:
        shape, fortran, dtype = _read_header(file, path)
        start = file.tell()
    words = {"f": "floats", "i": "whole numbers", "u": "whole numbers without sign", "b": "truth values"}
    wanted = " or ".join(words[kind] for kind in kinds)
    if dtype.kind not in kinds:
        raise SelhnError(f"{path} holds {dtype} where {wanted} are expected: convert it with numpy's astype")
    if len(shape) not in dims:
        axes = " or ".join(map(str, dims))
        raise SelhnError(
            f"{path} has shape {shape} where {axes} axes are expected: reshape it, or check which file it is"
        )
    _check_length(path, start + math.prod(shape) * dtype.itemsize, path.stat().st_size)
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def read_archive(path: Path, names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
    """Named float arrays of a .npz file, as float32; sizes that the archive claims are not trusted."""
    require_file(path)
    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                with archive.open(f"{name}.npy") as member:
                    # Read one byte more than allowed, to notice what is too long; a zip bomb stops here.
                    content = member.read(MAX_PROJECTION_BYTES + 1)
                file = io.BytesIO(content)
                shape, fortran, dtype = _read_header(file, path / name)
                _check_length(path / name, file.tell() + math.prod(shape) * dtype.itemsize, len(content))
                if dtype.kind != "f":
                    raise SelhnError(f"{path / name} holds {dtype} instead of floats: write float32")
                flat = np.frombuffer(content, dtype, offset=file.tell())
                arrays.append(flat.reshape(shape, order="F" if fortran else "C").astype(np.float32))
    except KeyError as missing:
        raise NotFound(f"{path} lacks an array ({missing}): it must hold {', '.join(names)}") from None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as broken:
        raise Damaged(f"{path} is not a readable .npz archive ({broken}): copy it again") from None
    return arrays


def read_text(path: Path) -> str:
    """The whole of a UTF-8 file."""
    require_file(path)
    size = path.stat().st_size
    if size > MAX_TEXT_BYTES:
        raise SelhnError(f"{path} has {size / 2**30:.1f} GiB, too much for texts: check which file it is")
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise Damaged(
            f"{path}, line {line}: the byte 0x{content[wrong.start]:02x} is not UTF-8: "
            "save the file as UTF-8 (from Latin-1: iconv -f latin1 -t utf8)"
        ) from None


def read_lines(path: Path) -> list[str]:
    """The stripped lines of a UTF-8 file; a last empty line does not count."""
    # Only "\n" ends a line: str.splitlines would also cut at rarer marks, which captions may contain.
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_integers(path: Path) -> list[int]:
    """One whole number of at least 0 per line."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not (line.isascii() and line.isdigit() and len(line) < 19):
            raise SelhnError(
                f"{path}, line {number}: {line[:40]!r} is not a whole number >= 0: write one per line"
            )
    return [int(line) for line in lines]


def parse_json(text: str, place: str, what_to_do: str = "write it again, or copy it again") -> Any:
    """A JSON value."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise Damaged(f"{place} is not JSON ({str(wrong)[:120]}): {what_to_do}") from None


def read_json(path: Path, optional: bool = False, **advice: str) -> dict[str, Any]:
    """A JSON object; an empty one if it is optional and missing. `advice` as in `parse_json`."""
    if optional and not path.exists():
        return {}
    content = parse_json(read_text(path), str(path), **advice)
    if not isinstance(content, dict):
        raise Damaged(f"{path} should hold one JSON object, not a {type(content).__name__}: check the file")
    return content


def read_json_lines(path: Path, **fields: type) -> list[dict[str, Any]]:
    """One JSON object per line, each with at least these fields of these types."""
    objects = []
    for number, line in enumerate(read_lines(path), 1):
        entry = parse_json(line, f"{path}, line {number}")
        for name, kind in fields.items():
            # JSON's true is an int in Python, but not an image number.
            if not isinstance(entry, dict) or type(entry.get(name)) is not kind:
                raise SelhnError(
                    f"{path}, line {number}: needs a field {name!r} of type {kind.__name__}: "
                    f"write every line as {{{', '.join(map(repr, fields))}}}"
                )
        objects.append(entry)
    return objects
