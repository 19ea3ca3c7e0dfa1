"""Scalars out of a TensorBoard file, without TensorBoard.

The file is a sequence of records: a length, its checksum, that many bytes and their checksum. The bytes are a
protocol-buffer message `Event` (field 2 the step, field 5 a `Summary` of values; of a value, field 1 the tag,
field 2 a float, field 8 a tensor). Everything else is skipped.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from selhn.base.errors import Damaged, SelhnError

MOST_BYTES = 1 << 30
LONGEST_RECORD = 1 << 24
"""A picture can be megabytes long; a scalar never is."""

Scalar = tuple[int, str, float]
"""Step, tag and value."""


def read_events(path: Path) -> list[Scalar]:
    """The scalars of an event file in the order written; a last record that was cut off is left out."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SelhnError(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}: that is not a log of scalars")
    scalars: list[Scalar] = []
    wrong = f"{path} is not a TensorBoard file, or is damaged"
    with path.open("rb") as file:
        while len(header := file.read(12)) == 12:
            at, (length,) = file.tell() - 12, struct.unpack_from("<Q", header)
            if length > LONGEST_RECORD:
                raise Damaged(f"{wrong}: the record at byte {at} claims {length:,} bytes")
            record = file.read(length)
            if len(record) < length or len(file.read(4)) < 4:
                break
            try:
                scalars += _scalars(record)
            except (Damaged, struct.error, UnicodeDecodeError):
                raise Damaged(f"{wrong}: see the record at byte {at}") from None
    return scalars


def _scalars(event: bytes) -> Iterator[Scalar]:
    step, summaries = 0, []
    for field, value in _fields(event):
        if field == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        if field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and isinstance(value, bytes):
                parts = dict(_fields(value))
                tag, plain, tensor = parts.get(1, b""), parts.get(2), parts.get(8)
                number: float | None = None
                if isinstance(plain, bytes) and len(plain) == 4:
                    (number,) = struct.unpack("<f", plain)
                elif isinstance(tensor, bytes):
                    number = _tensor(tensor)
                if number is not None and isinstance(tag, bytes):
                    yield step, tag.decode(), number


def _tensor(message: bytes) -> float | None:
    """The number of a tensor that holds one: field 1 the type, 4 the raw bytes, 5 floats, 6 doubles."""
    parts = dict(_fields(message))
    code = {1: "<f", 2: "<d"}.get(kind) if isinstance(kind := parts.get(1), int) else None
    raw = parts.get(4) or parts.get(5) or parts.get(6)
    if code is None or not isinstance(raw, bytes) or len(raw) != struct.calcsize(code):
        return None
    return float(struct.unpack(code, raw)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of a message: whole numbers as such, all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise Damaged(f"a field of kind {kind}")
        if length > len(message) - at:
            raise Damaged("a field beyond the end of its message")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, and the position after it."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (1 << 64) - 1, at + place + 1
    raise Damaged("a number without an end")
