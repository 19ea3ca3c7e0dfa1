"""Read scalars from a TensorBoard file, without TensorBoard.

The file is a sequence of records: a length, its checksum, that many bytes and their checksum. The bytes are a
protocol-buffer message `Event` (field 2 the step, field 5 a `Summary` of values; in a value, field 1 the tag,
field 2 a float, field 8 a tensor). Everything else is skipped.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from selhn.base.errors import Damaged

LONGEST_RECORD = 1 << 24
"""A picture can be megabytes long; a scalar never is."""

Scalar = tuple[int, str, float]
"""Step, tag and value."""


def read_events(path: Path) -> list[Scalar]:
    """The scalars of an event file in the order written; a last record that was cut off is left out."""
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
            except ValueError:  # also what is not UTF-8
                raise Damaged(f"{wrong}: see the record at byte {at}") from None
    return scalars


def _scalars(event: bytes) -> Iterator[Scalar]:
    step = dict(_fields(event)).get(2, 0)
    for summary in _messages(event, 5):
        for value in _messages(summary, 1):
            parts = dict(_fields(value))
            tag, number = parts.get(1, b""), _number(parts)
            if number is not None and isinstance(tag, bytes) and isinstance(step, int):
                yield step - (step >> 63 << 64), tag.decode(), number


def _messages(message: bytes, number: int) -> list[bytes]:
    """The messages in a repeated field."""
    return [value for field, value in _fields(message) if field == number and isinstance(value, bytes)]


def _number(parts: Mapping[int, int | bytes]) -> float | None:
    """The number of a value, or of a tensor: field 1 its type, 4 the raw bytes, 5 floats, 6 doubles."""
    code, raw = "<f", parts.get(2)
    if raw is None and isinstance(tensor := parts.get(8), bytes):
        parts = dict(_fields(tensor))
        code = {1: "<f", 2: "<d"}.get(kind, "") if isinstance(kind := parts.get(1), int) else ""
        raw = parts.get(4) or parts.get(5) or parts.get(6)
    if not code or not isinstance(raw, bytes) or len(raw) != struct.calcsize(code):
        return None
    return float(struct.unpack(code, raw)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field of a message: whole numbers as int, everything else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        width = {1: 8, 5: 4}.get(key & 7)
        number, at = _varint(message, at) if width is None else (width, at)
        if key & 7 == 0:
            yield key >> 3, number
            continue
        if key & 7 not in (1, 2, 5) or number > len(message) - at:
            raise ValueError("not a field, or one beyond the end of its message")
        yield key >> 3, message[at : at + number]
        at += number


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, and the position after it."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (1 << 64) - 1, at + place + 1
    raise ValueError("a number without an end")
