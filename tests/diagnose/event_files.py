"""TensorBoard files for tests, written byte by byte from the description of the format."""

import struct


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def record(message):
    return struct.pack("<QI", len(message), 0) + message + b"\0\0\0\0"


def event(step, values):
    summary = b"".join(field(1, field(1, tag.encode()) + value) for tag, value in values.items())
    return record(varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + field(2, step) + field(5, summary))


def scalar_event(step, **values):
    return event(step, {name.replace("__", "/"): field(2, float(value)) for name, value in values.items()})


HEADER = record(field(3, b"brain.Event:2"))
