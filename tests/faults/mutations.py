"""Damage and forgery, drawn from a seed: bytes as accidents leave them, and fields as a stranger would set them."""

import ast
import csv
import io
import json
import math
import struct
import zipfile
from argparse import Namespace

import numpy as np
import torch
import yaml

# Words that stand in a parsed file for what no parser would write; they are replaced in its text.
STANDS_FOR = {
    "@deep-list@": "[" * 5000 + "]" * 5000,
    "@deep-object@": '{"a":' * 3000 + "1" + "}" * 3000,
    "@digits@": "9" * 5000,
    "@huge@": "1e999",
}
EXTREME = (
    *(2**32 - 1, 2**31, 2**63, 10**30, 10**6, 0, 1, -1, -(2**63), 7),
    *(math.nan, math.inf, -math.inf, 1e20, 1e-320, 0.5, -0.0),
    *("", "x" * 100_000, "\0", "../../etc/passwd", "/etc/passwd", "é\ud800", "NaN", "12", "float32", "\n"),
    *(
        None,
        True,
        False,
        [],
        {},
        [[]],
        [None],
        {"": None},
        [1, 2, 3],
        ["a", "b"],
        {"a": 1},
        list(range(5000)),
    ),
    *STANDS_FOR,
)
DTYPES = (
    "|O",
    "<f8",
    "<f2",
    "<c8",
    "|S9",
    "<U5",
    ">f4",
    "<i8",
    "<i4",
    "|u1",
    "|b1",
    "<M8[s]",
    "|V0",
    "<f4",
    "[('a','<f4')]",
)
NUMBERS = (math.nan, math.inf, -math.inf, 1e20, -1e20, 3e38, 1e-40, 0.0, -1.0, 1.0)
YAML_TEXTS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n" for p, c in zip("abcdefghi", "bcdefghij")
    ),
    "!!python/object/apply:os.system ['true']\n",
    "a: &a\n  b: *a\n",
    "? [a, b]\n: c\n",
    "a: 2026-99-99\n",
    "a: 1:99999999999999999999:1\n",
    "%YAML 9.9\n---\na: 1\n",
    "[" * 3000,
    "- " * 3000,
    "a: !!binary '%%%'\n",
    "a: !!timestamp x\n",
    "<<: 5\na: 1\n",
    "<<: [1]\n",
    "{1: 2, null: 3, true: 4, 1.5: 6}\n",
    "a: 0x\nb: 0b\n",
    "a: !!int x\n",
    "a: !!float x\n",
    "a: .inf\n: \n",
)


def mutate(folder, draw):
    """Change one file of a folder, rarely two; returns what was done in words, and the file's path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if path.name not in ("lock", "README.md")] or files
    path = draw.choice(files)
    name = path.relative_to(folder).as_posix()
    if draw.random() < 0.04:
        return _whole_file(path, files, draw), name
    content = path.read_bytes()
    structured = _structure(path, content)
    if structured is not None and draw.random() < 0.6:
        try:
            words, changed = structured(content, draw)
        except (
            ValueError,
            KeyError,
            IndexError,
            struct.error,
            RecursionError,
            zipfile.BadZipFile,
        ):  # another structure
            words, changed = change_bytes(content, draw)
    else:
        words, changed = change_bytes(content, draw)
    path.write_bytes(changed)
    return words, name


def _whole_file(path, files, draw):
    kind = draw.choice(("removed", "emptied", "exchanged", "a folder", "doubled"))
    if kind == "removed":
        path.unlink()
    elif kind == "emptied":
        path.write_bytes(b"")
    elif kind == "exchanged":
        path.write_bytes(draw.choice(files).read_bytes())
    elif kind == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(path.read_bytes() * 2)
    return f"file {kind}"


def change_bytes(content, draw):
    """Bytes as accidents leave them."""
    content, kind = bytearray(content), draw.randrange(9)
    place = draw.randrange(len(content)) if content else 0
    length = draw.choice((1, 2, 8, 64, 4096))
    if kind == 0 and content:
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return "bits flipped", bytes(content)
    if kind == 1 and content:
        content[place] = draw.randrange(256)
        return "byte changed", bytes(content)
    if kind == 2:
        return "cut off", bytes(content[:place])
    if kind == 3:
        return "appended", bytes(
            content + draw.choice((b"\0", b"\n", b"x", draw.randbytes(length), content[-length:]))
        )
    if kind == 4:
        content[place : place + length] = bytes([draw.choice((0, 0, 255))]) * len(
            content[place : place + length]
        )
        return "block filled", bytes(content)
    if kind == 5:
        del content[place : place + length]
        return "block removed", bytes(content)
    if kind == 6:
        content[place:place] = content[place : place + length]
        return "block doubled", bytes(content)
    if kind == 7:
        content[place:place] = draw.randbytes(length)
        return "bytes inserted", bytes(content)
    return "replaced by noise", draw.randbytes(draw.randrange(200))


def _structure(path, content):
    """What knows the structure of a file, if anything does."""
    if ".pth" in path.name:
        return lambda content, draw: (_change_checkpoint if draw.random() < 0.6 else _change_zip)(
            content, draw
        )
    if content[:4] == b"PK\3\4":
        return _change_zip
    if content[:6] == b"\x93NUMPY":
        return _change_npy
    known = {
        ".json": _change_json, ".jsonl": _change_lines, ".yaml": _change_yaml, ".safetensors": _change_safetensors,
        ".csv": _change_table, ".tsv": _change_table, ".txt": _change_text, ".log": _change_text,
    }  # fmt: skip
    return known.get(path.suffix)


def _places(value, at=()):
    """The paths to all values in a parsed file."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*at, key))


def change_value(value, draw):
    """A parsed file with one field that is extreme, missing, renamed or another's."""
    places = list(_places(value))
    at = draw.choice(places)
    if not at:
        return "the whole is extreme", draw.choice(EXTREME)
    value = json.loads(json.dumps(value))
    owner = value
    for key in at[:-1]:
        owner = owner[key]
    kind, last = draw.randrange(10), at[-1]
    words = ".".join(map(str, at))[:60]
    if kind == 0:
        del owner[last]
        return f"{words} missing", value
    if kind == 1 and isinstance(owner, dict):
        owner[draw.choice(("", "x", "__class__", "self", last + "x", "format"))] = owner.pop(last)
        return f"{words} renamed", value
    if kind == 2:
        other = draw.choice(places)
        source = value
        for key in other:
            source = source[key]
        owner[last] = json.loads(json.dumps(source))
        return f"{words} is {'.'.join(map(str, other))[:40]}", value
    if kind == 3 and isinstance(owner[last], (int, float)):
        owner[last] = draw.choice(
            (owner[last] + 1, owner[last] - 1, owner[last] * 2, -owner[last], owner[last] * 1000)
        )
        return f"{words} near", value
    if kind == 4 and isinstance(owner, list):
        owner.insert(last, owner[last])
        return f"{words} doubled", value
    extreme = draw.choice(EXTREME)
    owner[last] = extreme
    return f"{words} = {str(extreme)[:20]}", value


def _dumped(value):
    text = json.dumps(value)
    for word, instead in STANDS_FOR.items():
        text = text.replace(json.dumps(word), instead)
    return text


def _change_json(content, draw):
    words, value = change_value(json.loads(content), draw)
    return words, _dumped(value).encode("utf-8", "surrogatepass")


def _change_lines(content, draw):
    lines = content.decode().splitlines()
    at = draw.randrange(len(lines))
    words, value = change_value(json.loads(lines[at]), draw)
    lines[at] = _dumped(value)
    return f"line {at}: {words}", ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _change_yaml(content, draw):
    if draw.random() < 0.3:
        text = draw.choice(YAML_TEXTS)
        return f"yaml {text[:20]!r}", (text if draw.random() < 0.5 else content.decode() + text).encode()
    words, value = change_value(yaml.safe_load(content), draw)
    text = _dumped(value) if draw.random() < 0.5 else yaml.safe_dump(value, sort_keys=False)
    comments = "".join(line for line in content.decode().splitlines(True) if line.startswith("#"))
    return words, (comments + text).encode("utf-8", "surrogatepass")


def _change_table(content, draw):
    delimiter = max(",;\t", key=content.decode().partition("\n")[0].count)
    rows = list(csv.reader(io.StringIO(content.decode()), delimiter=delimiter))
    row = draw.choice(rows)
    row[draw.randrange(len(row))] = str(draw.choice((*EXTREME, *STANDS_FOR.values())))[:200_000]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return "cell", text.getvalue().encode("utf-8", "surrogatepass")


def _change_text(content, draw):
    lines = content.decode().split("\n")
    at = draw.randrange(len(lines))
    lines[at] = draw.choice(
        (
            str(draw.choice(EXTREME))[:200_000],
            "",
            lines[at] * 1000,
            "\x85\u2028" + lines[at],
            *STANDS_FOR.values(),
            draw.choice(lines),
        )
    )
    return f"line {at}", "\n".join(lines).encode("utf-8", "surrogatepass")


def _change_npy(content, draw):
    version = content[6]
    size = int.from_bytes(content[8 : 10 if version == 1 else 12], "little")
    start = 10 if version == 1 else 12
    header, data = (
        ast.literal_eval(content[start : start + size].decode()),
        bytearray(content[start + size :]),
    )
    kind = draw.randrange(5)
    if kind < 2 and header["descr"] == "<f4" and data:
        numbers = np.frombuffer(data, "<f4").copy()
        number = draw.choice(NUMBERS)
        numbers[draw.randrange(len(numbers))] = number
        if draw.random() < 0.2:
            numbers[:] = number
        data, words = numbers.tobytes(), f"a number is {number}"
    elif kind == 2:
        header["descr"] = draw.choice(DTYPES)
        words = f"numbers are {header['descr']}"
    elif kind == 3:
        shape, fortran = list(header["shape"]), header["fortran_order"]
        change = draw.randrange(6)
        if change == 0 and shape:
            shape[draw.randrange(len(shape))] = draw.choice((0, 1, -1, 2**31, 2**62, 2**64, 10**30, True))
        elif change == 1:
            shape = shape[::-1]
        elif change == 2:
            shape = [1, *shape]
        elif change == 3:
            shape = [int(np.prod(shape))] if shape else [1]
        elif change == 4:
            fortran = not fortran
        else:
            shape = []
        header.update(shape=tuple(shape), fortran_order=fortran)
        words = f"shape {tuple(shape)}, fortran {fortran}"
    else:
        text = draw.choice(
            (
                "(" * 4000,
                "[" * 150 + "]" * 150,
                "1" + "+1" * 2000,
                "{}",
                "{'descr': '<f4'}",
                "-" * 5000 + "1",
                "\0",
                "x" * 9000,
            )
        )
        return "header forged", _npy(text, data, draw)
    return words, _npy(repr(header), data, draw)


def _npy(header, data, draw):
    text = header.encode("latin1", "replace") + b"\n"
    if len(text) > 65000 or draw.random() < 0.05:
        return b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text + bytes(data)
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(data)


def _change_safetensors(content, draw):
    (size,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    kind = draw.randrange(5)
    if kind < 2:
        names = [name for name in header if name != "__metadata__" and header[name]["dtype"] == "F32"]
        first, last = header[draw.choice(names)]["data_offsets"]
        number, numbers = draw.choice(NUMBERS), np.frombuffer(data[first:last], "<f4").copy()
        numbers[draw.randrange(len(numbers))] = number
        data[first:last] = numbers.tobytes()
        return f"a weight is {number}", content[: 8 + size] + bytes(data)
    if kind == 2:
        name = draw.choice([name for name in header if name != "__metadata__"])
        header[name]["dtype"] = draw.choice(
            ("F16", "F64", "I32", "U8", "BOOL", "BF16", "F8_E4M3", "C64", "I64", "F32", "x")
        )
        words = f"{name} is {header[name]['dtype']}"
    else:
        words, header = change_value(header, draw)
    text = _dumped(header).encode("utf-8", "surrogatepass")
    size = draw.choice((2**63, 0, 2**32, len(text) + 1)) if draw.random() < 0.1 else len(text)
    return words, struct.pack("<Q", size) + text + bytes(data)


def _change_checkpoint(content, draw):
    """A file of torch.save with one weight that is something else."""
    with torch.serialization.safe_globals([Namespace]):
        whole = torch.load(io.BytesIO(content), weights_only=True)
    part = draw.choice(whole["model"])
    name = draw.choice(sorted(part))
    weight = part[name]
    first = weight.flatten()[:1] if weight.numel() else torch.zeros(1)
    number = draw.choice(NUMBERS)
    instead = draw.choice(
        (
            *(weight.to(kind) for kind in (torch.complex64, torch.float16, torch.int64, torch.bool)),
            *(
                first.expand(2**33),
                first.expand(50_000, 50_000),
                weight.to_sparse(),
                weight[:0],
                weight.T,
                weight[None],
            ),
            *(weight.double() * 1e300, weight.masked_fill(torch.ones_like(weight, dtype=torch.bool), number)),
            *(
                None,
                "x",
                7,
                [weight],
                {"a": weight},
                weight.numpy().tolist()[:3],
                torch.quantize_per_tensor(first, 1, 0, torch.qint8),
            ),
        )
    )
    if draw.random() < 0.2:
        name = draw.choice(("", "x", name + ".weight", name.upper(), "a" * 10_000))
    part[name] = instead
    if draw.random() < 0.2:
        whole["opt"] = draw.choice(
            (Namespace(no_imgnorm=draw.choice(EXTREME), measure=draw.choice(EXTREME)), None, 3, {})
        )
    file = io.BytesIO()
    torch.save(whole, file, _use_new_zipfile_serialization=content[:2] == b"PK")
    return f"{name[:40]} is {type(instead).__name__} {tuple(getattr(instead, 'shape', ()))}", file.getvalue()


def _change_zip(content, draw):
    """An archive (.npz, a file of torch.save) with one member changed, its checksums right again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name, out = draw.choice(sorted(members)), io.BytesIO()
    change = _change_npy if members[name][:6] == b"\x93NUMPY" and draw.random() < 0.7 else change_bytes
    words, changed = change(members[name], draw)
    if draw.random() < 0.1:
        members[draw.choice(("x", "../x", name + "x", "/x"))] = changed
    elif draw.random() < 0.1:
        del members[name]
    else:
        members[name] = changed
    packed = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", packed) as archive:
        for member, inside in members.items():
            archive.writestr(zipfile.ZipInfo(member), inside, packed)
    return f"member {name}: {words}", out.getvalue()
