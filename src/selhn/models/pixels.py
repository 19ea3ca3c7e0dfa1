"""Models on pixels: a picture goes as patches through a vision transformer, a text through a BERT.

The regions of a picture are its patches (extractor `pixels_SIDE_PATCH`): the first is their mean, the others its
pixels, row by row. So batches, features on a GPU, recorded steps, indices and exports are those of all models.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from selhn.base.errors import NotFound, SelhnError, needs
from selhn.models.builders import BertSettings
from selhn.models.matcher import RegionMask, Regions
from selhn.models.table import Paper, model
from selhn.models.vse import MLP_ORDER, VSE, ImageEncoder, TextEncoder, with_words
from selhn.ops.bert_encoder import BertConfig, BertEncoder

SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
"""Settings of a transformer that is trained from scratch on some thousand pairs."""
FAMILIES = (
    "beit",
    "clip_vision_model",
    "convnext",
    "deit",
    "dinov2",
    "resnet",
    "siglip_vision_model",
    "swin",
    "swinv2",
    "vit",
)
"""Vision models of transformers that are built from a configuration alone, without remote code."""
UNKEPT = ("architectures", "auto_map", "attn_implementation", "quantization_config", "dtype", "torch_dtype")
States = tuple[Float[Tensor, "I K C"], Bool[Tensor, "I K"]]


@dataclass(frozen=True)
class PixelSettings(BertSettings):
    """Settings of a model of patches and word pieces.

    `vision` is one of three: the size of our own transformer ({"hidden_size": 256, ...}); transformers:FOLDER or
    timm:NAME, with trained weights; or a configuration of those libraries, with random weights.
    """

    num_regions: int = 0
    vision: str | Path | Mapping[str, Any] | None = None  # with Path: a saved model may not name a source


def sides(feature_dim: int, num_regions: int) -> tuple[int, int]:
    """Patches along each side of a picture, and pixels along each side of a patch; refuses other features."""
    grid, patch = math.isqrt(max(num_regions - 1, 0)), math.isqrt(max(feature_dim, 0) // 3)
    if grid < 1 or grid**2 + 1 != num_regions or patch < 1 or 3 * patch**2 != feature_dim:
        raise SelhnError(
            f"{num_regions} regions of {feature_dim} numbers are not the patches of a picture: import the pictures "
            "with --extractor pixels_224_16, or another side and patch"
        )
    return grid, patch


def as_pixels(regions: Regions, mask: RegionMask) -> Float[Tensor, "I 3 H W"]:
    """The pictures that were cut into patches, from -1 to 1; patches that are left out are grey."""
    grid, patch = sides(regions.shape[2], regions.shape[1])
    patches = (regions * mask[..., None])[:, 1:].transpose(1, 2)
    return pixel_shuffle(patches.unflatten(2, (grid, grid)), patch)


class PatchTransformer(nn.Module):
    """A vision transformer of our own, with the layers of BERT; patches that are left out are not looked at.

    Reference: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021.
    """

    def __init__(self, settings: Mapping[str, Any], feature_dim: int, num_regions: int):
        super().__init__()
        sides(feature_dim, num_regions)
        self.settings = {**SMALL, **settings}
        config = BertConfig.read({**self.settings, "vocab_size": 1, "max_position_embeddings": num_regions})
        self.width = config.hidden_size
        self.layers = BertEncoder(config, _Patches(feature_dim, num_regions, config))

    def forward(self, regions: Regions, mask: RegionMask) -> States:
        return self.layers(regions, mask), mask


class _Patches(nn.Module):
    """The input of a transformer: each patch, and its position."""

    def __init__(self, feature_dim: int, num_regions: int, config: BertConfig):
        super().__init__()
        self.project = nn.Linear(feature_dim, config.hidden_size)
        self.places = nn.Embedding(num_regions, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, regions: Regions) -> Float[Tensor, "I M h"]:
        if regions.shape[1] != len(self.places.weight):
            raise SelhnError(
                f"the pictures have {regions.shape[1]} patches and the model was made for {len(self.places.weight)}: "
                "take the extractor that it was trained with"
            )
        return self.dropout(self.norm(self.project(regions) + self.places.weight))


class LibraryVision(nn.Module):
    """A vision model of transformers or timm on whole pictures; it gives its patches, or the cells of its map."""

    def __init__(self, source: str | Path | Mapping[str, Any], feature_dim: int, num_regions: int):
        super().__init__()
        grid, patch = sides(feature_dim, num_regions)
        source = source if isinstance(source, Mapping) else str(source)
        kept = dict(source) if isinstance(source, Mapping) else {"library": source.partition(":")[0]}
        self.is_pretrained = isinstance(source, str) or bool(kept.pop("is_pretrained", False))
        open_network = {"transformers": _of_transformers, "timm": _of_timm}.get(
            kept.pop("library", "transformers")
        )
        if open_network is None:
            raise NotFound(f"vision is {source!r}: give transformers:FOLDER, timm:NAME, or a configuration")
        named = source.partition(":")[2] if isinstance(source, str) else None
        self.network, self.settings = open_network(named, kept, grid * patch)
        self.settings["is_pretrained"] = (
            self.is_pretrained
        )  # a saved model that is trained further keeps its rates
        for name in ("mean", "deviation"):
            self.register_buffer(
                name, torch.tensor(self.settings[name], device="cpu")[:, None, None], persistent=False
            )
        with torch.no_grad():
            training, _ = self.network.training, self.network.eval()
            try:
                self.width = self._states(torch.zeros(1, 3, grid * patch, grid * patch)).shape[2]
            except (AssertionError, RuntimeError, ValueError) as error:
                raise SelhnError(
                    f"this vision model cannot take {grid * patch} pixels ({error}): import the pictures in its size"
                ) from None
            self.network.train(training)

    def forward(self, regions: Regions, mask: RegionMask) -> States:
        mean, deviation = self.get_buffer("mean"), self.get_buffer("deviation")
        states = self._states(((as_pixels(regions, mask) + 1) / 2 - mean) / deviation)
        return states, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)

    def _states(self, pixels: Float[Tensor, "I 3 H W"]) -> Float[Tensor, "I K C"]:
        if self.settings["library"] == "timm":
            found = self.network.forward_features(pixels)
            width = self.network.num_features
        else:
            found = self.network(pixel_values=pixels).last_hidden_state
            width = getattr(self.network.config, "hidden_size", None) or self.network.config.hidden_sizes[-1]
        if not isinstance(found, Tensor):
            raise SelhnError(
                f"this vision model gives a {type(found).__name__}, not patches or a map: choose another"
            )
        if found.ndim == 4:  # a map: (I, C, h, w), or (I, h, w, C)
            found = found.flatten(2).transpose(1, 2) if found.shape[1] == width else found.flatten(1, 2)
        return found


def _of_transformers(folder: str | None, kept: Mapping[str, Any], side: int) -> tuple[Any, dict[str, Any]]:
    with needs("transformers"):
        library = importlib.import_module("transformers")
    if folder is not None:
        if not Path(folder).is_dir():
            raise NotFound(
                f"vision is transformers:{folder}, and there is no such folder: download the model first"
            )
        config = library.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config = getattr(config, "vision_config", config)
        known, _ = library.image_processing_base.ImageProcessingMixin.get_image_processor_dict(folder)
        scale = {"mean": known.get("image_mean"), "deviation": known.get("image_std")}
    else:
        family = kept.get("model_type")
        if family not in FAMILIES:
            raise NotFound(f"vision has the model_type {family!r}: choose {', '.join(FAMILIES)}")
        scale = {name: kept.get(name) for name in ("mean", "deviation")}
        not_theirs = (*UNKEPT, *scale, "model_type")
        plain = {k: v for k, v in kept.items() if k not in not_theirs and not k.startswith("_")}
        config = library.AutoConfig.for_model(family, **{"image_size": side, **plain})
    if getattr(config, "image_size", side) != side:
        raise SelhnError(
            f"this vision model sees {config.image_size} pixels and the pictures have {side}: import them so"
        )
    if folder is None:
        network = library.AutoModel.from_config(config, trust_remote_code=False)
    else:
        network = library.AutoModel.from_pretrained(folder, trust_remote_code=False)
        network = getattr(network, "vision_model", network)
    return network, {
        **config.to_diff_dict(),
        "library": "transformers",
        "model_type": config.model_type,
        **_lists(scale),
    }


def _of_timm(name: str | None, kept: Mapping[str, Any], side: int) -> tuple[Any, dict[str, Any]]:
    with needs("timm"):
        library = importlib.import_module("timm")
    model = name or str(kept.get("model"))
    if ":" in model or not library.is_model(model):
        raise NotFound(f"timm has no model {model!r}: timm.list_models() lists all")
    how = {"pretrained": name is not None, "num_classes": 0}
    try:
        network = library.create_model(model, img_size=side, **how)
    except TypeError:  # it has no such setting, and takes pictures of any size
        network = library.create_model(model, **how)
    known = library.data.resolve_model_data_config(network)
    return network, {
        "library": "timm",
        "model": model,
        **_lists({"mean": known["mean"], "deviation": known["std"], **kept}),
    }


def _lists(scale: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: [float(value) for value in scale.get(name) or (0.5,) * 3] for name in ("mean", "deviation")}


def without_weights(vision: Any) -> Any:
    """The setting to build a model without weights: timm:NAME in an untrusted file must not download any."""
    library, _, name = str(vision).partition(":")
    if not isinstance(vision, str) or library != "timm":
        return vision
    return {"library": "timm", "model": name, "is_pretrained": True}


class PixelEncoder(nn.Module):
    """Patches to one unit vector: a vision model, then what `ImageEncoder` does with regions."""

    def __init__(self, common: PixelSettings):
        super().__init__()
        vision, sizes = common.vision or {}, (common.feature_dim, common.num_regions)
        if not isinstance(vision, Mapping) or {"library", "model_type"} & set(vision):
            self.vision: PatchTransformer | LibraryVision = LibraryVision(vision, *sizes)
        else:
            self.vision = PatchTransformer(vision, *sizes)
        self.head = ImageEncoder(self.vision.width, common.dim, "residual", MLP_ORDER, mask_bn=False)
        self.fc = self.head.fc

    def forward(self, regions: Regions, mask: RegionMask) -> Float[Tensor, "I d"]:
        return self.head(*self.vision(regions, mask))


def _matcher(common: PixelSettings) -> VSE:
    image = PixelEncoder(common)
    words, tokenizer = with_words(common)
    model = VSE(image, TextEncoder(words, common.dim), tokenizer)
    model.settings["vision"] = image.vision.settings
    return model


@model(Paper("Radford et al., ICML 2021", "https://arxiv.org/abs/2103.00020"))
def clip(common: PixelSettings) -> VSE:
    """A small CLIP: two transformers from scratch, patches of pixels and a vocabulary of words."""
    words = {**SMALL, "max_position_embeddings": 128}
    if isinstance(common.bert, Mapping):
        words.update(common.bert)
    elif common.bert != PixelSettings.bert:
        raise SelhnError("clip learns its words from scratch: take vit_bert for a BERT that knows language")
    model = _matcher(replace(common, bert=words))
    model.text.words.is_pretrained = False
    return model


@model(
    Paper("after Fu et al. (LAPS), CVPR 2024", "https://github.com/CrossmodalGroup/LAPS"),
    brings_tokenizer=True,
)
def vit_bert(common: PixelSettings) -> VSE:
    """RVSE++ from pixels: the patches of a vision transformer are its regions; the family of LAPS and D2S-VSE."""
    return _matcher(common)
