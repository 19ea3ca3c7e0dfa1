"""Files of an index: written through to the disk, known by length and checksum, read without trust."""

import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import write_whole
from selhn.base.untrusted import open_array

CHECKSUM = "checksum"


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> list[int]:
    """Write chunks into a new file and sync it to the disk; returns length and checksum."""
    size = checksum = 0
    with path.open("xb") as file:  # never into a file that is there, which may be a link
        for chunk in chunks:
            file.write(chunk)
            size += memoryview(chunk).nbytes
            checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    return [size, checksum]


def write_rows(path: Path, dtype: torch.dtype, shape: tuple[int, ...], parts: Iterable[Tensor]) -> list[int]:
    """Write a .npy file whose rows come in parts; returns length and checksum."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype.newbyteorder("<"))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    rows = (part.cpu().contiguous().numpy().data.cast("B") for part in parts if len(part))
    return write_file(path, chain([header.getvalue()], rows))


def open_rows(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> Shaped[Tensor, "..."]:
    """A .npy file of this type and shape, mapped into memory; writing to it does not change the file.

    An array without rows has no file.
    """
    if shape[0] == 0:
        return torch.empty(shape, dtype=dtype)
    try:
        found = open_array(path, "fi", (1, 2))
    except SelhnError as wrong:
        raise Damaged(str(wrong)) from None
    wanted = torch.empty(0, dtype=dtype).numpy().dtype
    if found.dtype != wanted or found.shape != shape or found.flags.f_contiguous > found.flags.c_contiguous:
        raise Damaged(f"{path} holds {found.dtype} {found.shape}, not {wanted} {shape}")
    offset: int = found.offset  # type: ignore[attr-defined]
    # Copy-on-write, because torch wants memory that it may write to.
    return torch.from_numpy(np.memmap(path, wanted, "c", offset, shape))


def check_length(path: Path, entry: Any) -> None:
    """Refuse a file that is not as long as it was written."""
    if not isinstance(entry, list) or len(entry) != 2 or not all(isinstance(number, int) for number in entry):
        raise Damaged(f"the manifest has no size and checksum of {path.name}")
    size = entry[0]
    if not path.is_file():
        raise Damaged(f"{path.name} is missing")
    found = path.stat().st_size
    if found != size:
        raise Damaged(f"{path.name} has {found:,} bytes, not {size:,}")


def check_content(path: Path, entry: Any) -> None:
    """Refuse a file that is not what was written; reads all of it."""
    check_length(path, entry)
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    if checksum != entry[1]:
        raise Damaged(f"{path.name} is not what was written (its checksum differs)")


def write_checked_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step by another that has its own checksum."""
    whole = {**content, CHECKSUM: _checksum(content)}
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1)
    write_whole(path, f"{text}\n")


def read_checked_json(path: Path) -> dict[str, Any]:
    """What `write_checked_json` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as wrong:  # not UTF-8, or not JSON
        raise Damaged(f"{path.name} cannot be read ({wrong})") from None
    found = content.pop(CHECKSUM, None) if isinstance(content, dict) else None
    if found is None or found != _checksum(content):
        raise Damaged(f"{path.name} is not what was written (its checksum differs)")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
