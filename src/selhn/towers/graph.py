"""ONNX models, written without the onnx package (36 MB with what it brings).

ONNX is a protocol buffer: fields with a number and a value, which may itself be a message of fields. The
numbers below are those of onnx.proto.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

VERSION, OPERATORS = 8, 17
"""Versions of the format and of its operators; onnxruntime reads them since 1.13."""
FLOAT, INT64, BOOL = 1, 7, 9
"""Types of tensors."""
_TYPES = {"f": (FLOAT, "<f4"), "i": (INT64, "<i8")}
_ONE_FLOAT, _ONE_INTEGER, _INTEGERS = 1, 2, 7
"""Kinds of attributes."""
_EXTERNAL, _LARGE, _ALIGNED = 1, 1024, 4096
"""Weights of more than 1,024 bytes are written beside the model, each at a multiple of the size of a page."""

Value = tuple[str, int, Sequence[int | str]]
"""An input or output: its name, type and sizes; those that are strings are free."""


class Graph:
    """A graph that grows node by node. Nodes and weights are known by the names that `node` and `weight` return.

    Args:
        beside: a file for large weights, which is then mapped into memory instead of parsed, and its name. Without
            it the model is complete in itself.
    """

    def __init__(self, beside: BinaryIO | None = None, name: str = ""):
        self._parts, self._known = [_field(2, "network")], dict[bytes, str]()
        self._beside, self._name = beside, name

    def weight(self, values: ArrayLike) -> str:
        """Numbers: floats as float32, whole numbers as int64. Small ones that are equal are stored once."""
        array = np.asarray(values)
        kind, dtype = _TYPES[array.dtype.kind]
        raw = np.ascontiguousarray(array, dtype).tobytes()
        name, about = f"weight{len(self._parts)}", _field(1, *array.shape) + _field(2, kind)
        if len(raw) <= _LARGE or self._beside is None:
            name = self._known.setdefault(about + raw, name)
            content = _field(9, raw)
        else:
            content = self._written(raw)
        if name == f"weight{len(self._parts)}":
            self._parts.append(_message(5, about, _field(8, name), content))
        return name

    def _written(self, raw: bytes) -> bytes:
        assert self._beside is not None
        self._beside.write(bytes(-self._beside.tell() % _ALIGNED))
        place = {"location": self._name, "offset": self._beside.tell(), "length": len(raw)}
        self._beside.write(raw)
        entries = (_message(13, _field(1, key), _field(2, str(value))) for key, value in place.items())
        return b"".join(entries) + _field(14, _EXTERNAL)

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: float | Sequence[int]) -> str:
        """A node with one output that is used."""
        return self.nodes(operator, *inputs, outputs=[output or f"node{len(self._parts)}"], **attributes)[0]

    def nodes(
        self, operator: str, *inputs: str, outputs: Sequence[str] | int, **attributes: float | Sequence[int]
    ) -> Sequence[str]:
        """A node with several outputs, by their names or their number."""
        if isinstance(outputs, int):
            outputs = [f"node{len(self._parts)}_{number}" for number in range(outputs)]
        about = [_field(1, *inputs), _field(2, *outputs), _field(4, operator)]
        about += [_message(5, _field(1, name), _attribute(value)) for name, value in attributes.items()]
        self._parts.append(_message(1, *about))
        return outputs

    def model(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> bytes:
        """The content of the file."""
        ends = [
            _message(number, _field(1, name), _message(2, _message(1, _field(1, kind), _shape(sizes))))
            for number, values in ((11, inputs), (12, outputs))
            for name, kind, sizes in values
        ]
        graph = _message(7, *self._parts, *ends)
        return _field(1, VERSION) + graph + _message(8, _field(1, ""), _field(2, OPERATORS))


def _attribute(value: float | Sequence[int]) -> bytes:
    if isinstance(value, float):
        return _integer(2 << 3 | 5) + np.float32(value).tobytes() + _field(20, _ONE_FLOAT)
    if isinstance(value, int):
        return _field(3, value) + _field(20, _ONE_INTEGER)
    return _field(8, *value) + _field(20, _INTEGERS)


def _shape(sizes: Sequence[int | str]) -> bytes:
    return _message(2, *(_message(1, _field(2 if isinstance(size, str) else 1, size)) for size in sizes))


def _message(number: int, *fields: bytes) -> bytes:
    return _field(number, b"".join(fields))


def _field(number: int, *values: Any) -> bytes:
    """A field once per value: an integer, or a length and as many bytes."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(_integer(number << 3) + _integer(value % 2**64))
        else:
            content = value.encode() if isinstance(value, str) else value
            found.append(_integer(number << 3 | 2) + _integer(len(content)) + content)
    return b"".join(found)


def _integer(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth says that more follow."""
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + _integer(value >> 7)
