"""Vision models, from a picture to a feature map: EfficientNet-Lite, timm, transformers and open_clip.

A picture is resized to the square that the model was trained on, so that a cell of the map is a part of it.
"""

import importlib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from selhn.base.errors import MissingExtra, NotFound, SelhnError
from selhn.pictures.efficientnet_lite import load_network
from selhn.towers import Preparation
from selhn.towers.efficientnet_lite import HEAD, SIZES, network_model
from selhn.towers.onnx_session import OnnxSession


@runtime_checkable
class Backbone(Protocol):
    """A vision model with its preprocessing."""

    name: str
    """Identifies the weights: features of different names are never mixed."""
    width: int
    """C, the channels of its map."""

    def prepare(self, image: Image.Image) -> Float[np.ndarray, "3 H W"]:
        """The input of the model for an RGB picture."""
        ...

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """The last map of some pictures, on the device of the model."""
        ...


class EfficientNetLite:
    """EfficientNet-Lite with ImageNet weights; its map after the last convolution.

    The weights of number 2 are part of selhn, those of 0 and 1 come from Python packages.

    On a CPU, onnxruntime runs it if that is installed: about three times as fast, and equal up to rounding.

    Args:
        eager: always run it with torch.
    """

    FOLDED = {
        "_conv_stem": "_bn0", "_conv_head": "_bn1",
        "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2",
    }  # fmt: skip
    """Convolutions and the batch norms that follow them."""
    width = HEAD

    def __init__(self, number: int = 2, device: torch.device | str = "cpu", eager: bool = False):
        self.name, self.number = f"efficientnet_lite{number}", number
        side = SIZES[number].side
        self.prepare = Preparation((side, side), (127.0,) * 3, (128.0,) * 3)
        network: Any = load_network(number)
        self.device = torch.device(device)
        self._session = None if eager or self.device.type != "cpu" else _onnx_session(network, number)
        # Twice as fast on a CPU, and equal up to rounding (6e-5 where values reach 6).
        fold_batch_norms(network, self.FOLDED)
        self.network = None if self._session else network.to(device, memory_format=torch.channels_last)

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        # On a CPU one at a time: the activations of several do not fit into its cache.
        some = pixels.to(self.device).split(1 if self.device.type == "cpu" else len(pixels))
        maps = [self._maps(one) for one in some]
        return maps[0] if len(maps) == 1 else torch.cat(maps)

    def _maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        if self._session is not None:
            return torch.from_numpy(self._session.run(["maps"], {"pixels": pixels.contiguous().numpy()})[0])
        assert self.network is not None
        return self.network(pixels.contiguous(memory_format=torch.channels_last)).contiguous()


class Pixels:
    """No vision model: the pixels themselves, from -1 to 1, as a map of patches, for models that see pixels."""

    MOST = 1024

    def __init__(self, side: int, patch: int):
        if not 1 <= patch <= side <= self.MOST or side % patch:
            raise SelhnError(
                f"pixels_{side}_{patch}: give a side of up to {self.MOST}, and a patch that divides it"
            )
        self.name, self.width, self.patch, self.cells = (
            f"pixels_{side}_{patch}",
            3 * patch**2,
            patch,
            side // patch,
        )
        self.prepare = Preparation((side, side), (127.5,) * 3, (127.5,) * 3)

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        return nn.functional.pixel_unshuffle(pixels, self.patch)


class Timm:
    """Any vision model of timm by its name, with its own preprocessing."""

    def __init__(self, model: str, device: torch.device | str = "cpu", pretrained: bool = True):
        timm = import_library("timm", f"timm:{model}", "pip install timm")
        self.name = f"timm:{model}"
        self.network: Any = timm.create_model(model, pretrained=pretrained, num_classes=0).eval().to(device)
        known = timm.data.resolve_model_data_config(self.network)
        self.prepare = Preparation.of_shares(tuple(known["input_size"][1:]), known["mean"], known["std"])
        self.width = int(self.network.num_features)
        self.device = torch.device(device)

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """The map of a convolutional network, or the patches of a transformer laid out as one."""
        found = self.network.forward_features(pixels.to(self.device))
        return as_map(found, self.width, getattr(self.network, "num_prefix_tokens", 0), self.prepare.size)


class Transformers:
    """Any vision model of transformers by its name or folder; of two towers, the one for pictures."""

    def __init__(self, model: str, device: torch.device | str = "cpu"):
        library = import_library("transformers", f"transformers:{model}", "pip install transformers")
        self.name = f"transformers:{model}"
        whole = library.AutoModel.from_pretrained(model)
        self.network: Any = getattr(whole, "vision_model", whole).eval().to(device)
        config = self.network.config
        # The settings alone: the processors themselves need further libraries.
        kept, _ = library.image_processing_base.ImageProcessingMixin.get_image_processor_dict(model)
        size = getattr(config, "image_size", None) or kept.get("size", {}).get("height") or 224
        mean, deviation = (kept.get(name, (0.5, 0.5, 0.5)) for name in ("image_mean", "image_std"))
        self.prepare = Preparation.of_shares(size, mean, deviation)
        self.width = int(getattr(config, "hidden_size", None) or config.hidden_sizes[-1])
        self.device = torch.device(device)

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Its last hidden states as a map; tokens before the patches (a class token) are left out."""
        found = self.network(pixel_values=pixels.to(self.device)).last_hidden_state
        patch, prefix = getattr(self.network.config, "patch_size", None), 0
        if found.ndim == 3 and isinstance(patch, int):
            prefix = found.shape[1] - (self.prepare.size[0] // patch) * (self.prepare.size[1] // patch)
        return as_map(found, self.width, prefix, self.prepare.size)


class OpenClip:
    """The picture tower of any open_clip model, written `MODEL` or `MODEL/WEIGHTS`."""

    def __init__(self, model: str, device: torch.device | str = "cpu"):
        library = import_library("open_clip", f"open_clip:{model}", "pip install open_clip_torch")
        self.name = f"open_clip:{model}"
        architecture, weights = open_clip_name(model)
        self.network: Any = library.create_model(architecture, pretrained=weights).eval().to(device)
        known = self.network.visual.preprocess_cfg
        self.prepare = Preparation.of_shares(known["size"], known["mean"], known["std"])
        self.device = torch.device(device)
        with torch.inference_mode():
            self.width = self.maps(torch.zeros(1, 3, *self.prepare.size)).shape[1]

    def maps(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """The patches after the last block, as a map."""
        found = self.network.forward_intermediates(
            image=pixels.to(self.device), image_indices=1, image_output_fmt="NCHW", intermediates_only=True
        )
        return found["image_intermediates"][-1]


@torch.no_grad()
def fold_batch_norms(network: nn.Module, followed_by: Mapping[str, str]) -> None:
    """Fold batch norms into the convolutions before them; `followed_by` names both."""
    for module in network.modules():
        for first, second in followed_by.items():
            conv, norm = getattr(module, first, None), getattr(module, second, None)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                factor = norm.weight / (norm.running_var + norm.eps).sqrt()
                shift = norm.bias - norm.running_mean * factor
                conv.bias = nn.Parameter(shift if conv.bias is None else shift + conv.bias * factor)
                conv.weight.mul_(factor[:, None, None, None])
                setattr(module, second, nn.Identity())


def as_map(found: Tensor, width: int, prefix: int, size: tuple[int, int]) -> Float[Tensor, "B C h w"]:
    """(B, C, h, w), (B, h, w, C) or prefix tokens and patches (B, N, C) as a map."""
    if found.ndim == 4:
        return found if found.shape[1] == width else found.permute(0, 3, 1, 2)
    patches = found[:, prefix:].transpose(1, 2)
    number, (height, breadth) = patches.shape[2], size
    rows = round(math.sqrt(number * height / breadth))
    if rows < 1 or number % rows:
        raise SelhnError(
            f"{number} patches of a picture of {height} x {breadth} do not form a grid: use another model"
        )
    return patches.unflatten(2, (rows, number // rows))


def is_foreign(name: str) -> bool:
    """Whether the name belongs to another library, which may download the model or open any folder."""
    return ":" in name


def open_clip_name(model: str) -> tuple[str, str | None]:
    """Architecture and weights of `MODEL/WEIGHTS`; hf-hub:OWNER/MODEL, which open_clip takes too, names both."""
    name, slash, weights = ("", "", "") if ":" in model else model.partition("/")
    return (name, weights) if slash else (model, None)


def create_backbone(name: str, device: torch.device | str = "cpu") -> Backbone:
    """A vision model by name.

    Names: efficientnet_lite2, timm:MODEL, transformers:MODEL or FOLDER, open_clip:MODEL/WEIGHTS,
    pixels_224_16.
    """
    if sizes := re.fullmatch(r"pixels_(\d{1,4})_(\d{1,4})", name):
        return Pixels(int(sizes[1]), int(sizes[2]))
    kind, _, model = name.partition(":")
    builder: Any = {"timm": Timm, "transformers": Transformers, "open_clip": OpenClip}.get(kind)
    if model and builder is not None:
        try:
            return builder(model, device)
        except (RuntimeError, OSError, KeyError, AttributeError, TypeError) as error:
            raise SelhnError(f"{kind} cannot make {model!r} ({str(error)[:200]}): check its name") from error
    for number in SIZES:
        if name == f"efficientnet_lite{number}":
            return EfficientNetLite(number, device)
    raise NotFound(
        f"unknown vision model {name!r}: use efficientnet_lite2 (also 0 and 1), timm:MODEL, "
        "transformers:MODEL, open_clip:MODEL/WEIGHTS or pixels_SIDE_PATCH"
    )


def _onnx_session(network: nn.Module, number: int) -> OnnxSession | None:
    """The network in onnxruntime; None if that is not installed."""
    weights = {name: weight.numpy() for name, weight in network.state_dict().items()}
    with suppress(MissingExtra):
        return OnnxSession(network_model(number, weights))
    return None


def import_library(module: str, what: str, how: str) -> Any:
    """A library that is not part of selhn; if it is missing, `how` says what to type."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{what} needs a library that is not installed ({error}): {how}") from error
