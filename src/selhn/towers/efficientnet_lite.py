"""EfficientNet-Lite: its layers, and the network as part of an ONNX graph.

Reference: Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019. The Lite
form has no squeeze-and-excitation, ReLU6 instead of swish, and the same first and last layers in all sizes.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from selhn.towers.graph import FLOAT, Graph


class Size(NamedTuple):
    """How one of the networks is scaled from EfficientNet-B0, and its published weights."""

    width: float
    depth: float
    side: int
    """Height and width of its pictures."""
    digest: str
    """SHA-256 of the file of weights, whose name has the first eight digits."""


SIZES = {
    0: Size(1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    1: Size(1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    2: Size(1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
STAGES = (
    (1, 16, 1, 3, 1), (2, 24, 6, 3, 2), (2, 40, 6, 5, 2), (3, 80, 6, 3, 2), (3, 112, 6, 5, 1),
    (4, 192, 6, 5, 2), (1, 320, 6, 3, 1),
)  # fmt: skip
"""EfficientNet-B0: blocks, channels, expansion, and kernel and stride of the first block of each stage."""
STEM, HEAD = 32, 1280
EPSILON = 1e-3


class Convolution(NamedTuple):
    """A convolution without bias, and the batch norm after it; the names of weights are those of the published files.

    Its output has 1/stride of the cells, rounded up. As in TensorFlow, where the weights come from, an odd row or
    column of zeros is added at the end.
    """

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    side: int = 1
    """Height and width of its input; a kernel of one cell works for all."""
    clipped: bool = True
    """Whether a ReLU6 follows."""

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and after, in both directions."""
        missing = max(0, (math.ceil(self.side / self.stride) - 1) * self.stride + self.kernel - self.side)
        return missing // 2, missing - missing // 2


class Block(NamedTuple):
    """An inverted bottleneck: expand, filter each channel, project; the input is added if shapes allow."""

    name: str
    convolutions: tuple[Convolution, ...]
    adds_input: bool


class Layers(NamedTuple):
    """All layers of a network except its classifier."""

    stem: Convolution
    blocks: tuple[Block, ...]
    head: Convolution


def layers(number: int) -> Layers:
    """The layers of EfficientNet-Lite0, 1 or 2."""
    size = SIZES[number]
    stem = Convolution("_conv_stem", "_bn0", 3, STEM, 3, 2, side=size.side)
    blocks, inputs, side = list[Block](), STEM, math.ceil(size.side / 2)
    for stage, (repeats, channels, expansion, kernel, stride) in enumerate(STAGES):
        is_fixed = stage in (0, len(STAGES) - 1)
        outputs = _channels(channels * size.width)
        for repeat in range(repeats if is_fixed else math.ceil(repeats * size.depth)):
            own = 1 if repeat else stride
            blocks.append(_block(len(blocks), inputs, outputs, expansion, kernel, own, side))
            inputs, side = outputs, math.ceil(side / own)
    return Layers(stem, tuple(blocks), Convolution("_conv_head", "_bn1", inputs, HEAD))


def _block(
    number: int, inputs: int, outputs: int, expansion: int, kernel: int, stride: int, side: int
) -> Block:
    inner = inputs * expansion
    convolutions = (
        Convolution("_expand_conv", "_bn0", inputs, inner),
        Convolution("_depthwise_conv", "_bn1", inner, inner, kernel, stride, inner, side),
        Convolution("_project_conv", "_bn2", inner, outputs, clipped=False),
    )
    adds_input = stride == 1 and inputs == outputs
    return Block(f"_blocks.{number}.", convolutions[expansion == 1 :], adds_input)


def _channels(wanted: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth too small."""
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * wanted else nearest + 8


def add_network(
    graph: Graph, pixels: str, number: int, weights: Mapping[str, Shaped[np.ndarray, "..."]]
) -> str:
    """Add the network to a graph: from the name of the pixels (B, 3, side, side) to that of the map (B, C, h, w).

    Batch norms are folded into the convolutions before them.
    """
    network = layers(number)

    def convolution(x: str, own: Convolution, place: str = "") -> str:
        kernel, gamma, beta, mean, variance = (
            weights[place + name]
            for name in (
                f"{own.name}.weight",
                *(f"{own.norm}.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")),
            )
        )
        factor = gamma / np.sqrt(variance + np.float32(EPSILON))
        inputs = [x, graph.weight(kernel * factor[:, None, None, None]), graph.weight(beta - mean * factor)]
        pads = (own.pads[0], own.pads[0], own.pads[1], own.pads[1])
        y = graph.node("Conv", *inputs, strides=(own.stride, own.stride), pads=pads, group=own.groups)
        return graph.node("Clip", y, graph.weight(0.0), graph.weight(6.0)) if own.clipped else y

    x = convolution(pixels, network.stem)
    for block in network.blocks:
        y = x
        for own in block.convolutions:
            y = convolution(y, own, block.name)
        x = graph.node("Add", y, x) if block.adds_input else y
    return convolution(x, network.head)


def network_model(number: int, weights: Mapping[str, Shaped[np.ndarray, "..."]]) -> bytes:
    """The network alone as an ONNX model: `pixels` (B, 3, side, side) to `maps` (B, C, h, w)."""
    graph, side = Graph(), SIZES[number].side
    graph.node("Identity", add_network(graph, "pixels", number, weights), output="maps")
    return graph.model([("pixels", FLOAT, ["B", 3, side, side])], [("maps", FLOAT, ["B", HEAD, "h", "w"])])
