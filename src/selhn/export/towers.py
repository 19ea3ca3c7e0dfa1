"""Both towers of an embedding model as ONNX files, kept only if they agree with the model.

OUT/image_tower.onnx   regions (images, M, F) float32, region_mask (images, M) bool -> image_vector (images, d)
OUT/text_tower.onnx    tokens (texts, N) int64, token_mask (texts, N) bool -> text_vector (texts, d)
OUT/towers.json        inputs, outputs, the tokenizer, d, how vectors are scored, and the largest difference
OUT/vocabulary.json    or tokenizer.json: what makes tokens from a sentence
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.device import device_of
from selhn.base.errors import MissingExtra, SelhnError, pip_install
from selhn.base.folders import new_folder
from selhn.base.onnx import import_onnxruntime
from selhn.base.version import __version__
from selhn.export.onnx_gru import translations, with_exported_grus
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.models.matcher import members, taken_side
from selhn.search.encoding import digest_of, width_of
from selhn.text import PIECES_FILE, VOCABULARY_FILE, Vocabulary

TOLERANCE = 1e-4
DESCRIPTION_FILE = "towers.json"
FORMAT = 1
SHAPES = ((1, 1), (1, 7), (2, 36), (3, 2), (9, 12), (33, 5))
"""Shapes for which the files are compared with the model: images or texts, and positions."""
EXPORTED_SHAPE = (4, 6)
Side = Literal["image", "text"]


@dataclass(frozen=True)
class Tower:
    """One side of a model: the name of its file, its inputs and its output."""

    side: Side
    inputs: tuple[str, str]
    axes: tuple[str, str]
    output: str

    @property
    def file(self) -> str:
        return f"{self.side}_tower.onnx"

    def encode(self, model: AbstractMatcher, values: Tensor, mask: Tensor) -> Tensor:
        return model.encode_images(values, mask) if self.side == "image" else model.encode_texts(values, mask)


TOWERS = (
    Tower("image", ("regions", "region_mask"), ("images", "regions_of_image"), "image_vector"),
    Tower("text", ("tokens", "token_mask"), ("texts", "tokens_of_text"), "text_vector"),
)


def export_towers(
    model: AbstractMatcher, out: Path | str, about: dict[str, Any] | None = None, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Write both towers into a new folder, compare them with the model, and return what `towers.json` says.

    The folder appears only if it is complete and agrees with the model.

    Args:
        about: further entries of `towers.json`, such as how pictures become regions.
        tolerance: the largest difference of a coordinate that is accepted.
    """
    if model.source is not None:
        raise SelhnError(f"{model.source} is a model of another library: export it with that library")
    width_of(model)  # refuses a model that has none
    taken_side(model, {}, "images")
    onnx, onnxruntime = _imported()
    with new_folder(Path(out)) as partial:
        differences = {}
        for tower in TOWERS:
            onnx.save(_graph(model, tower), partial / tower.file)
            differences[tower.side] = _largest_difference(
                onnxruntime, model, tower, partial / tower.file, tolerance
            )
        description = describe_towers(model, differences, about or {})
        (partial / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        if model.tokenizer is not None:
            model.tokenizer.save(partial)
    return description


def describe_towers(
    model: AbstractMatcher, differences: dict[Side, float], about: dict[str, Any]
) -> dict[str, Any]:
    """Everything a program needs to use the files without selhn."""
    first = members(model)[0]
    order = bool(getattr(first, "order", False))
    unit_images = bool(getattr(first, "normalise_images", True))
    return {
        "format": FORMAT,
        "model": {"name": model.name or type(model).__name__, "digest": digest_of(model), **about},
        "d": width_of(model),
        "feature_dim": _feature_dim(model),
        "towers": {tower.side: {**asdict(tower), "file": tower.file} for tower in TOWERS},
        "types": {"regions": "float32", "tokens": "int64", "region_mask": "bool", "token_mask": "bool"},
        "unit_length": {"image": unit_images, "text": True},
        "score": "-|max(0, text - image)|" if order else "image . text",
        "tokenizer": _tokenizer(model),
        "largest_difference": differences,
        "versions": {"selhn": __version__, "torch": str(torch.__version__)},
    }


def _tokenizer(model: AbstractMatcher) -> dict[str, Any] | None:
    if model.tokenizer is None:
        return None
    words = isinstance(model.tokenizer, Vocabulary)
    return {
        "kind": "words in lower case, <start> before and <end> after" if words else "word pieces of BERT",
        "file": VOCABULARY_FILE if words else PIECES_FILE,
        "size": model.tokenizer.size,
        "pad_id": model.tokenizer.pad_id,
        "max_length": _most_places(model),
    }


def _feature_dim(model: AbstractMatcher) -> int:
    if "feature_dim" not in model.settings:
        raise SelhnError(
            "the width of the regions is unknown: only a model with a setting feature_dim can be exported"
        )
    return int(model.settings["feature_dim"])


def _most_places(model: AbstractMatcher) -> int | None:
    """The longest text in tokens, if there is a limit."""
    bert = model.settings.get("bert")
    if isinstance(bert, dict):
        return int(bert["max_position_embeddings"])
    return getattr(model.tokenizer, "max_length", None)


def _fixed_places(model: AbstractMatcher, tower: Tower) -> int | None:
    """The number of regions, if a model requires a fixed number (CVSE)."""
    return model.settings.get("num_regions") if tower.side == "image" else None


def _graph(model: AbstractMatcher, tower: Tower) -> Any:
    """The ONNX model of one tower, for any number of items and places."""
    values, mask = _sample(model, tower, *EXPORTED_SHAPE, seed=0)
    any_size = {0: torch.export.Dim.DYNAMIC}
    if _fixed_places(model, tower) is None:
        any_size[1] = torch.export.Dim.DYNAMIC
    module = _OneSide(with_exported_grus(model), tower).eval()
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module,
            (values, mask),
            dynamo=True,
            dynamic_shapes=(any_size, any_size),
            input_names=list(tower.inputs),
            output_names=[tower.output],
            custom_translation_table=dict(translations()),
            # No optimisation: it would turn the 1e-8 of unit vectors into 0; runtimes optimise on
            # load.
            optimize=False,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    del graph.graph.value_info[:]  # shapes of the sample
    for value in (*graph.graph.input, *graph.graph.output):
        for dimension, name in zip(value.type.tensor_type.shape.dim, tower.axes):
            if dimension.dim_param:
                dimension.dim_param = name
    return graph


class _OneSide(nn.Module):
    model: AbstractMatcher

    def __init__(self, model: AbstractMatcher, tower: Tower):
        super().__init__()
        self.model, self.tower = model, tower

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return self.tower.encode(self.model, values, mask)


def _sample(
    model: AbstractMatcher, tower: Tower, rows: int, places: int, seed: int
) -> tuple[Float[Tensor, "n M F"] | Int[Tensor, "n N"], Bool[Tensor, "n _"]]:
    """Random items, the first of full length, the others padded; masks of images have holes too."""
    generator = torch.Generator().manual_seed(seed)
    places = _fixed_places(model, tower) or places
    lengths = torch.randint(1, places + 1, (rows,), generator=generator)
    lengths[0] = places
    mask = torch.arange(places) < lengths[:, None]
    if tower.side == "image":
        mask = mask[:, torch.randperm(places, generator=generator)]
        return torch.randn(rows, places, _feature_dim(model), generator=generator), mask
    size = model.tokenizer.size if model.tokenizer is not None else int(model.settings["vocab_size"])
    tokens = torch.randint(0, size, (rows, places), generator=generator)
    return tokens.masked_fill(~mask, 0 if model.tokenizer is None else model.tokenizer.pad_id), mask


def _largest_difference(
    onnxruntime: Any, model: AbstractMatcher, tower: Tower, file: Path, tolerance: float
) -> float:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    device = device_of(model)
    most, largest = _most_places(model) if tower.side == "text" else None, 0.0
    for seed, (rows, places) in enumerate((EXPORTED_SHAPE, *SHAPES), 1):
        values, mask = _sample(model, tower, rows, min(places, most or places), seed)
        with in_eval_mode(model):
            wanted = tower.encode(model, values.to(device), mask.to(device)).float().cpu().numpy()
        (found,) = session.run([tower.output], dict(zip(tower.inputs, (values.numpy(), mask.numpy()))))
        difference = float(np.abs(found - wanted).max()) if found.shape == wanted.shape else np.inf
        if not difference <= tolerance:
            raise SelhnError(
                f"the {tower.side} tower differs by {difference:.1e} from {model.name} for {rows} x {places}; at most "
                f"{tolerance:.0e} is allowed: nothing was written; try other versions of torch, onnx and onnxruntime"
            )
        largest = max(largest, difference)
    return largest


def _imported() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxscript  # noqa: F401

        onnxruntime = import_onnxruntime()
    except ImportError as missing:
        raise MissingExtra(f"ONNX files need {missing.name}: {pip_install('onnx')}") from None
    return onnx, onnxruntime


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its own internals and about missing vision packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
