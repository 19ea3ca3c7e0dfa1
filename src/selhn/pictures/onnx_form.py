"""EfficientNet-Lite as an ONNX model, written without the onnx package (36 MB with what it brings).

ONNX is a protocol buffer: fields with a number and a value, which may itself be a message of fields. The
numbers below are those of onnx.proto.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from selhn.pictures.efficientnet_lite import Network, PaddedConv

VERSION, OPERATORS = 8, 17
"""Versions of the format and of its operators; onnxruntime reads them since 1.13."""
FLOAT, ONE_INTEGER, INTEGERS = 1, 2, 7
"""The type float32, and kinds of attributes."""


def to_onnx(network: Network, side: int) -> bytes:
    """A model from `pixels` (B, 3, side, side) to `maps` (B, C, h, w); batch norms must have been folded."""
    graph = _Graph()
    x = graph.convolution("pixels", network._conv_stem)
    for block in network.blocks:
        y = graph.convolution(x, block._expand_conv) if block.expands else x
        y = graph.convolution(y, block._depthwise_conv)
        y = graph.convolution(y, block._project_conv, clipped=False)
        x = graph.node("Add", [y, x]) if block.adds_input else y
    graph.node("Identity", [graph.convolution(x, network._conv_head)], output="maps")
    return graph.model(("B", 3, side, side), ("B", network._conv_head.out_channels, "h", "w"))


class _Graph:
    def __init__(self) -> None:
        self._parts = [_field(2, "network")]
        self._bounds = [self.weight(torch.tensor(value)) for value in (0.0, 6.0)]

    def convolution(self, x: str, conv: PaddedConv, clipped: bool = True) -> str:
        """A convolution, then a ReLU6 if clipped."""
        assert conv.bias is not None
        inputs = [x, self.weight(conv.weight), self.weight(conv.bias)]
        before, after = conv.pads
        pads = (before, before, after, after)
        y = self.node("Conv", inputs, strides=tuple(conv.stride), pads=pads, group=conv.groups)
        return self.node("Clip", [y, *self._bounds]) if clipped else y

    def weight(self, values: Tensor) -> str:
        name, raw = f"weight{len(self._parts)}", values.detach().numpy().astype("<f4").tobytes()
        self._parts.append(
            _message(5, _field(1, *values.shape), _field(2, FLOAT), _field(8, name), _field(9, raw))
        )
        return name

    def node(
        self, operator: str, inputs: Sequence[str], output: str = "", **attributes: int | tuple[int, ...]
    ) -> str:
        output = output or f"node{len(self._parts)}"
        about = [_field(1, *inputs), _field(2, output), _field(4, operator)]
        for name, value in attributes.items():
            number, kind, values = (
                (3, ONE_INTEGER, (value,)) if isinstance(value, int) else (8, INTEGERS, value)
            )
            about.append(_message(5, _field(1, name), _field(number, *values), _field(20, kind)))
        self._parts.append(_message(1, *about))
        return output

    def model(self, pixels: Sequence[int | str], maps: Sequence[int | str]) -> bytes:
        """The content of the file; sizes that are strings are free."""
        ends = [
            _message(number, _field(1, name), _message(2, _message(1, _field(1, FLOAT), _shape(sizes))))
            for number, name, sizes in ((11, "pixels", pixels), (12, "maps", maps))
        ]
        graph = _message(7, *self._parts, *ends)
        return _field(1, VERSION) + graph + _message(8, _field(1, ""), _field(2, OPERATORS))


def _shape(sizes: Sequence[int | str]) -> bytes:
    return _message(2, *(_message(1, _field(2 if isinstance(size, str) else 1, size)) for size in sizes))


def _message(number: int, *fields: bytes) -> bytes:
    return _field(number, b"".join(fields))


def _field(number: int, *values: int | str | bytes) -> bytes:
    """A field once per value: an integer, or a length and as many bytes."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(_integer(number << 3) + _integer(value))
        else:
            content = value.encode() if isinstance(value, str) else value
            found.append(_integer(number << 3 | 2) + _integer(len(content)) + content)
    return b"".join(found)


def _integer(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth says that more follow."""
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + _integer(value >> 7)
