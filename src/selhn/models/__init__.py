"""Models: images and texts in, `scores[image, text]` out. Each is one row of `MODELS`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

import torch

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import NAMED_LIBRARIES, NAMED_MODELS, did_you_mean, named_object, require_settings
from selhn.base.tensor_files import NothingDrawn, read_tensors, require_fit
from selhn.models import (
    bfan,
    camp,
    cmcan,
    cvse,
    devise,
    gsmn,
    imram,
    naaf,
    pixels,
    scan,
    sgraf,
    vse,
    vse_infty,
    vsepp,
    vsrn,
)
from selhn.models.cross_attention import CrossAttention
from selhn.models.foreign import adapt
from selhn.models.matcher import AbstractMatcher, encode_batch, in_eval_mode
from selhn.models.saved import WEIGHTS_FILE, find_folder, read_config
from selhn.models.twins import Twins
from selhn.models.vse import VSE
from selhn.models.vsepp import VSEpp
from selhn.text import has_tokenizer, load_tokenizer

__all__ = ["MODELS", "VSE", "AbstractMatcher", "CrossAttention", "ModelEntry", "Twins", "VSEpp"]
__all__ += [
    "adapt",
    "create_model",
    "encode_batch",
    "in_eval_mode",
    "list_models",
    "load_model",
    "register_model",
]


@dataclass(frozen=True)
class ModelEntry:
    """A row of the table of models."""

    build: Callable[..., AbstractMatcher]
    family: str
    paper: str
    url: str
    brings_tokenizer: bool = False
    """Whether it comes with its own tokenizer (a BERT does), and so needs no vocabulary."""


_SELHN = ("Li et al., 2023", "https://arxiv.org/abs/2303.00181")
_DEVISE = ("Frome et al., NIPS 2013", "https://papers.nips.cc/paper/5204")
_VSEPP = ("Faghri et al., BMVC 2018", "https://arxiv.org/abs/1707.05612")
_VSE_INFTY = ("Chen et al., CVPR 2021", "https://arxiv.org/abs/2011.04305")
_VSRN = ("Li et al., ICCV 2019", "https://arxiv.org/abs/1909.02701")
_CVSE = ("Wang et al., ECCV 2020", "https://arxiv.org/abs/2007.08883")
_SCAN = ("Lee et al., ECCV 2018", "https://arxiv.org/abs/1803.08024")
_BFAN = ("Liu et al., ACM Multimedia 2019", "https://arxiv.org/abs/1909.11416")
_CAMP = ("Wang et al., ICCV 2019", "https://arxiv.org/abs/1909.05506")
_IMRAM = ("Chen et al., CVPR 2020", "https://arxiv.org/abs/2003.03772")
_NAAF = (
    "Zhang et al., CVPR 2022",
    "https://openaccess.thecvf.com/content/CVPR2022/html/Zhang_Negative-Aware_Attention_Framework_for_Image-Text_Matching_CVPR_2022_paper.html",
)
_CMCAN = ("Zhang et al., AAAI 2022", "https://github.com/CrossmodalGroup/CMCAN")
_GSMN = ("Liu et al., CVPR 2020", "https://arxiv.org/abs/2004.00277")
_CLIP = ("Radford et al., ICML 2021", "https://arxiv.org/abs/2103.00020")
_LAPS = ("after Fu et al. (LAPS), CVPR 2024", "https://github.com/CrossmodalGroup/LAPS")
_SGRAF = ("Diao et al., AAAI 2021", "https://arxiv.org/abs/2101.01368")

MODELS: dict[str, ModelEntry] = {
    "vse_fc": ModelEntry(vse.vse_fc, "embedding", *_SELHN),
    "vse_mlp": ModelEntry(vse.vse_mlp, "embedding", *_SELHN),
    "rvse": ModelEntry(vse.rvse, "embedding", *_SELHN),
    "rvsepp": ModelEntry(vse.rvsepp, "embedding", *_SELHN, brings_tokenizer=True),
    "vsepp": ModelEntry(vsepp.vsepp, "embedding", *_VSEPP),
    "vsepp_order": ModelEntry(vsepp.vsepp_order, "order embedding", *_VSEPP),
    "vse_infty": ModelEntry(vse_infty.vse_infty, "embedding", *_VSE_INFTY),
    "vse_infty_bert": ModelEntry(vse_infty.vse_infty_bert, "embedding", *_VSE_INFTY, brings_tokenizer=True),
    "devise": ModelEntry(devise.devise, "embedding", *_DEVISE),
    "vsrn": ModelEntry(vsrn.vsrn, "embedding", *_VSRN),
    "cvse": ModelEntry(cvse.cvse, "embedding", *_CVSE),
    "clip": ModelEntry(pixels.clip, "embedding", *_CLIP),
    "vit_bert": ModelEntry(pixels.vit_bert, "embedding", *_LAPS, brings_tokenizer=True),
    "scan_t2i_avg": ModelEntry(scan.scan_t2i_avg, "cross-attention", *_SCAN),
    "scan_t2i_lse": ModelEntry(scan.scan_t2i_lse, "cross-attention", *_SCAN),
    "scan_i2t_avg": ModelEntry(scan.scan_i2t_avg, "cross-attention", *_SCAN),
    "scan_i2t_lse": ModelEntry(scan.scan_i2t_lse, "cross-attention", *_SCAN),
    "bfan_equal": ModelEntry(bfan.bfan_equal, "cross-attention", *_BFAN),
    "bfan_prob": ModelEntry(bfan.bfan_prob, "cross-attention", *_BFAN),
    "sgr": ModelEntry(sgraf.sgr, "cross-attention", *_SGRAF),
    "saf": ModelEntry(sgraf.saf, "cross-attention", *_SGRAF),
    "camp": ModelEntry(camp.camp, "cross-attention", *_CAMP),
    "camp_stage1": ModelEntry(camp.camp_stage1, "cross-attention", *_CAMP),
    "imram_text": ModelEntry(imram.imram_text, "cross-attention", *_IMRAM),
    "imram_image": ModelEntry(imram.imram_image, "cross-attention", *_IMRAM),
    "imram": ModelEntry(imram.imram, "cross-attention", *_IMRAM),
    "naaf": ModelEntry(naaf.naaf, "cross-attention", *_NAAF),
    "cmcan": ModelEntry(cmcan.cmcan, "cross-attention", *_CMCAN),
    "gsmn_dense": ModelEntry(gsmn.gsmn_dense, "cross-attention", *_GSMN),
    "gsmn_sparse": ModelEntry(gsmn.gsmn_sparse, "cross-attention", *_GSMN),
}

SIZES = ("dim", "vocab_size", "num_regions", "heads", "neighbours")
"""Endings of the settings that must be at least 1."""


def register_model(
    name: str,
    build: Callable[..., AbstractMatcher],
    *,
    family: str = "embedding",
    paper: str = "",
    url: str = "",
    brings_tokenizer: bool = False,
) -> None:
    """Add a model of your own to `MODELS`: it can then be created, listed, trained and loaded by name.

    The parameters of `build` are the settings of the model; those with a default are optional.
    Import your package before loading such a model.
    """
    if name in MODELS:
        raise SelhnError(f"there is already a model called {name!r}: register yours under another name")
    MODELS[name] = ModelEntry(build, family, paper, url, brings_tokenizer)


def list_models(pattern: str = "*") -> list[str]:
    """Names in `MODELS` that match a shell pattern, in the order of the table."""
    return [name for name in MODELS if fnmatch(name, pattern)]


def create_model(name: str, *, networks: int = 1, **settings: Any) -> AbstractMatcher:
    """The model of that name with random weights: `create_model("rvse", tokenizer=vocabulary, dim=512)`.

    `networks=2` makes two networks with different weights in one model (see `Twins`).
    """
    if name not in MODELS:
        raise NotFound(f"unknown model {name!r}: {did_you_mean(name, MODELS)}")
    if networks not in (1, 2):
        raise SelhnError(f"networks of {name} is {networks!r}: choose 1, or 2 that teach each other")
    parameters = inspect.signature(MODELS[name].build).parameters
    require_settings(name, MODELS[name].build, settings)
    for key, value in settings.items():
        if key.endswith(SIZES) and isinstance(value, int) and value < 1:
            raise SelhnError(f"{key} of {name} is {value}: choose at least 1")
    model = MODELS[name].build(**settings)
    if networks == 2:
        model = Twins(model, MODELS[name].build(**settings))
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    model.name = name
    resolved = {key: value for key, value in model.settings.items() if key in defaults or key == "networks"}
    model.settings = {**defaults, **settings, **resolved}
    model.settings.pop("tokenizer", None)
    return model


def load_model_named_in_file(name: object) -> AbstractMatcher | None:
    """The model that a file names, if it is on this machine (no download); None for other names."""
    return _load_named(name, local_only=True) if isinstance(name, str) else None


def _load_named(name: str, **how: bool) -> AbstractMatcher | None:
    if name in NAMED_MODELS:
        return named_object(NAMED_MODELS[name])()
    library, colon, model = name.partition(":")
    known = library in NAMED_LIBRARIES and colon and model
    return named_object(NAMED_LIBRARIES[library])(name, **how) if known else None


def load_model(path: Path | str) -> AbstractMatcher:
    """A model in evaluation mode, on the CPU.

    Args:
        path: a folder that `model.save` wrote, a run (its best epoch is loaded), "ready", the shipped model, or both
            towers of another library, "transformers:NAME", which that library may download.
    """
    if not Path(path).exists() and (named := _load_named(str(path))) is not None:
        return named
    folder = find_folder(Path(path))
    config = read_config(folder)
    if config["name"] not in MODELS:
        raise NotFound(
            f"{folder} holds the model {config['name']!r}, which nothing has registered: "
            "first import the package that calls register_model for it, or install a newer selhn"
        )
    settings = dict(config["settings"])
    for key, parameter in inspect.signature(MODELS[config["name"]].build).parameters.items():
        if isinstance(settings.get(key), str) and Path in (
            parameter.annotation,
            *get_args(parameter.annotation),
        ):
            raise Damaged(
                f"{folder}: {key} in config.json is the path {settings[key]!r}, and a saved model has to hold all it "
                f"needs: build it with create_model({config['name']!r}, {key}=...), load its weights, save it again"
            )
    if has_tokenizer(folder):
        settings["tokenizer"] = load_tokenizer(folder)
    weights = read_tensors(folder / WEIGHTS_FILE)
    require_fit(lambda: create_model(config["name"], **settings), weights, str(folder))
    with (
        torch.random.fork_rng(devices=[]),
        NothingDrawn(),
    ):  # leaves the caller's generator unchanged
        model = create_model(config["name"], **settings)
    model.load_state_dict(weights)
    return model.eval()
