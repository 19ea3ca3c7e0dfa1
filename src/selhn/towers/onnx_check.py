"""What an ONNX file declares, read without running it: sizes of tensors, files outside, operators.

ONNX is a protocol buffer: a message is a list of fields, each a number with an integer or with bytes, which may be a
message again. The numbers here are those of onnx.proto. Nothing is copied, and no level is entered that is not named
here: networks inside of nodes (If, Loop, Scan) and functions are refused, so there is no recursion.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

from selhn.base.errors import Damaged

MOST_FIELDS = 2_000_000
"""Of one file, read in about two seconds; CLIP has 60,000."""
MOST_RANK = 16
MOST_WEIGHT_BYTES = 2**34
DOMAINS = ("", "ai.onnx")
"""Where operators may come from: the standard. Others can be code of anyone's."""
FORMATS, OPERATORS = range(3, 21), range(7, 41)
"""Versions of the format and of its operators."""
SIZES = {
    **dict.fromkeys((1, 6, 12), 4.0), **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 1.0),
    **dict.fromkeys((4, 5, 10, 16), 2.0), **dict.fromkeys((7, 11, 13, 14), 8.0), 15: 16.0,
    **dict.fromkeys((21, 22, 23), 0.5), **dict.fromkeys((25, 26), 0.25),
}  # fmt: skip
"""Bytes of a number of each type; there are no texts among them."""
EXTERNAL = 1
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
Value = int | memoryview


@dataclass
class Budget:
    """How much may still be read and declared."""

    file: Path
    outside: Mapping[str, int]
    """Files that may hold weights, with their sizes."""
    fields: int = MOST_FIELDS
    weights: float = MOST_WEIGHT_BYTES

    def wrong(self, why: str) -> Damaged:
        return Damaged(f"{self.file} {why}: towers that selhn export towers wrote are not like this")


def check_graph(file: Path, outside: Mapping[str, int]) -> None:
    """Refuse a network that declares more than its files hold, or asks for more than arithmetic.

    Args:
        outside: the files beside it that may hold its weights, with their sizes.
    """
    budget = Budget(file, outside)
    with file.open("rb") as opened:
        try:
            content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise budget.wrong("is empty") from None
    try:
        _check_model(content, budget)
    except (IndexError, UnicodeDecodeError, OverflowError):
        raise budget.wrong("is not an ONNX model, or is cut off") from None


def _check_model(model: memoryview, budget: Budget) -> None:
    graphs = 0
    versions: list[int] = []
    for number, value in fields(model, budget):
        if number == 1 and value not in FORMATS:
            raise budget.wrong(f"has version {value} of the format")
        if number == 7:
            graphs += 1
            _check_network(_inside(value), budget)
        elif number == 8:
            versions.append(_check_operators(_inside(value), budget))
        elif number in (20, 25):
            raise budget.wrong("has functions or training steps of its own")
    if graphs != 1 or not versions:
        raise budget.wrong("has no network, or two, or does not say which operators it has")


def _check_operators(operators: memoryview, budget: Budget) -> int:
    domain, version = "", 0
    for number, value in fields(operators, budget):
        if number == 1:
            domain = _word(value)
        elif number == 2 and isinstance(value, int):
            version = value
    if domain not in DOMAINS or version not in OPERATORS:
        raise budget.wrong(f"has operators {domain[:40]!r} of version {version}")
    return version


def _check_network(network: memoryview, budget: Budget) -> None:
    for number, value in fields(network, budget):
        if number == 1:
            _check_node(_inside(value), budget)
        elif number == 5:
            _check_tensor(_inside(value), budget)
        elif number == 15:
            raise budget.wrong("has sparse weights")


def _check_node(node: memoryview, budget: Budget) -> None:
    for number, value in fields(node, budget):
        if number == 7 and (domain := _word(value)) not in DOMAINS:
            raise budget.wrong(f"has an operator of {domain[:40]!r}")
        if number == 5:
            _check_attribute(_inside(value), budget)


def _check_attribute(attribute: memoryview, budget: Budget) -> None:
    tensors = 0
    for number, value in fields(attribute, budget):
        if number in (6, 11):
            raise budget.wrong("has a network inside of a node (If, Loop or Scan)")
        if number in (22, 23):
            raise budget.wrong("has sparse weights")
        if number in (5, 10):
            tensors += number == 5
            _check_tensor(_inside(value), budget)
    if tensors > 1:  # readers would put them together
        raise budget.wrong("has two values for one attribute")


def _check_tensor(tensor: memoryview, budget: Budget) -> None:
    """The size that its axes declare is the size of its data."""
    dims: list[int] = []
    once: dict[int, Value] = {}
    outside: dict[str, str] = {}
    typed = 0
    for number, value in fields(tensor, budget):
        if number == 1:
            if not isinstance(value, int):  # others can read bytes in more than one way
                raise budget.wrong("has a tensor whose axes are written together")
            dims.append(value)
        elif number in (2, 9, 14):
            if number in once:
                raise budget.wrong("has a tensor with two types or two contents")
            once[number] = value
        elif number in (4, 5, 7, 10, 11):
            typed += 8 if isinstance(value, int) else len(value)
        elif number == 13:
            name, content = _pair(_inside(value), budget)
            outside[name] = content
        elif number in (3, 6):
            raise budget.wrong("has a tensor in segments, or of texts")
    kind, place = once.get(2), once.get(14, 0)
    if place not in (0, EXTERNAL):  # of 2^32 + 1, other readers see the 1
        raise budget.wrong("has weights at a place of another kind")
    if (
        not isinstance(kind, int)
        or kind not in SIZES
        or len(dims) > MOST_RANK
        or max(dims, default=0) >= 2**40
    ):
        raise budget.wrong(f"has a tensor of type {kind} with the axes {dims[:MOST_RANK]}")
    size = ceil(prod(dims) * SIZES[kind])
    budget.weights -= size
    if budget.weights < 0:
        raise budget.wrong(f"declares more than {MOST_WEIGHT_BYTES / 2**30:.0f} GiB of weights")
    raw = once.get(9)
    if place == EXTERNAL:
        _check_outside(outside, size, budget)
    elif isinstance(raw, memoryview):
        if len(raw) != size:
            raise budget.wrong(f"declares a tensor of {size:,} bytes and holds {len(raw):,}")
    elif prod(dims) > 2 * typed:  # a typed number takes a byte or more, two of four bits share one
        raise budget.wrong(f"declares a tensor of {prod(dims):,} numbers and holds {typed:,} bytes")


def _check_outside(entries: Mapping[str, str], size: int, budget: Budget) -> None:
    """Weights in a file beside it, where they really are."""
    name = entries.get("location", "")
    if name not in budget.outside:
        raise budget.wrong(
            f"has weights in {name[:100]!r}, which is not listed in towers.json, or not called after the network"
        )
    numbers = [entries.get("offset", "0"), entries.get("length", "")]
    if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers):
        raise budget.wrong(f"does not say where in {name} its weights are")
    offset, length = map(int, numbers)
    if length != size or offset + length > budget.outside[name]:
        raise budget.wrong(f"declares {size:,} bytes in {name} where it has {length:,}")


def fields(message: memoryview, budget: Budget) -> Iterator[tuple[int, Value]]:
    """The fields of a message: number, and integer or bytes."""
    at = 0
    while at < len(message):
        budget.fields -= 1
        if budget.fields < 0:
            raise budget.wrong(f"has more than {MOST_FIELDS:,} entries")
        key, at = _varint(message, at)
        if not 8 <= key < 2**32:  # other readers drop the bits above, and see another field
            raise IndexError
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(message, at)
        if length is None or at + length > len(message):
            raise IndexError
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """An integer of seven bits per byte, and where the next begins."""
    found = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
    raise IndexError


def _pair(entry: memoryview, budget: Budget) -> tuple[str, str]:
    found = {number: _word(value) for number, value in fields(entry, budget)}
    return found.get(1, ""), found.get(2, "")


def _inside(value: Value) -> memoryview:
    if isinstance(value, int):
        raise IndexError
    return value


def _word(value: Value) -> str:
    return bytes(_inside(value)[:1000]).decode()
