"""An embedding model as a towers folder (`selhn.towers`), kept only if it gives what the model gives.

OUT/image.onnx      from pixels if the vision model is known, else from regions; see `export.networks`
OUT/text.onnx       from tokens
OUT/tokenizer.json  from a sentence to tokens, for the library `tokenizers`
OUT/towers.json     everything that a program needs to use the files, and their SHA-256
OUT/*.weights       of networks that are large
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.folders import new_folder
from selhn.base.names import require_type
from selhn.base.sealed import digest_file
from selhn.base.version import __version__
from selhn.eval.stored import digest_of
from selhn.export.matcher_towers import towers_of, width_of
from selhn.export.networks import (
    Network,
    Side,
    imported_onnx,
    pixels_to_vector,
    preparation_of,
    write_network,
)
from selhn.export.onnx_gru import with_exported_grus
from selhn.export.tokenizers import most_tokens, write_tokenizer
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.models.matcher import members, taken_side
from selhn.pictures.extractor import Extractor, grid_boxes
from selhn.pictures.two_towers import TwoTowers
from selhn.towers import Description, ImageSide, Parts, TextSide, Towers
from selhn.towers.description import DESCRIPTION_FILE
from selhn.towers.first_run import remember

TOLERANCE = 1e-4
"""The largest difference of a coordinate that is accepted."""
SHAPES = ((4, 6), (1, 1), (1, 7), (2, 36), (3, 2), (9, 12), (33, 5))
"""Shapes for which the files are compared with the model: images or texts, and positions. The first is traced."""
PICTURES = ((64, 48), (300, 200), (20, 90))
"""Sizes of random pictures that they are compared on."""
SENTENCES = ("a", "two dogs, one of them brown, run through the snow", "An old man's hat.", "zxqv!")
IMAGE_FILE, TEXT_FILE, IMAGE_VECTOR, TEXT_VECTOR = "image.onnx", "text.onnx", "image_vector", "text_vector"
REGIONS, TOKENS = ("regions", "region_mask"), ("tokens", "token_mask")


def export_towers(
    model: AbstractMatcher,
    out: Path | str,
    extractor: Extractor | None = None,
    *,
    vision: str | None = None,
) -> Description:
    """Write a model into a new folder that `selhn.towers.Towers` opens, and return what its `towers.json` says.

    The folder appears only if it is complete and gives the vectors of the model.

    Args:
        extractor: what made the regions that the model was trained on. Its vision model then becomes part of
            `image.onnx`, which takes pixels. A model of another library has its own.
        vision: the name of that extractor, if only its name is known.
    """
    require_type("model", model, AbstractMatcher, "open one with load_model(...)")
    if isinstance(model, TwoTowers):
        extractor = model.require_own(extractor or model.extractor)
    width = width_of(model)  # refuses a model that has none
    taken_side(model, {}, "images")
    imported_onnx()
    if extractor is not None and extractor.width != model.settings.get("feature_dim", extractor.width):
        raise SelhnError(
            f"the model takes features of {model.settings['feature_dim']} numbers and {extractor.backbone.name} gives "
            f"{extractor.width}: name the extractor that it was trained with, or none"
        )
    with new_folder(Path(out)) as partial:
        copy = with_exported_grus(model)
        text = _write_text(copy, partial)
        image = _write_image(copy, partial, extractor, vision)
        order = not all(own.is_embedding for own in members(model))
        found = Description(
            name=model.name or type(model).__name__,
            digest=digest_of(model),
            width=width,
            score="order" if order else "product",
            image=image,
            text=text,
            pictures=None if extractor is None else preparation_of(extractor),
            cutoff=towers_of(model).cutoff,
            sha256={path.name: digest_file(path) for path in sorted(partial.iterdir())},
            about={"versions": {"selhn": __version__, "torch": str(torch.__version__)}},
        )
        differences = _differences(Towers(partial, found), model, extractor)
        content = {**found.content(), "largest_difference": differences}
        (partial / DESCRIPTION_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        written = Description.read(partial)  # refuses what another machine would refuse
    remember((Path(out) / DESCRIPTION_FILE).read_bytes())
    return written


def _write_text(model: AbstractMatcher, folder: Path) -> TextSide:
    text = write_tokenizer(model, folder, {"file": TEXT_FILE, "inputs": TOKENS, "output": TEXT_VECTOR})
    axes = ("texts",) if text.pad_to else ("texts", "tokens_of_text")
    sample = random_texts(model, *SHAPES[0], seed=0, pad_to=text.pad_to)
    write_network(Network(Side(model, "text"), TOKENS, (TEXT_VECTOR,), axes, sample), folder / TEXT_FILE)
    return text


def _write_image(
    model: AbstractMatcher, folder: Path, extractor: Extractor | None, vision: str | None
) -> ImageSide:
    if extractor is None:
        axes = ("images",) if model.settings.get("num_regions") else ("images", "regions_of_image")
        sample = random_regions(model, *SHAPES[0], seed=0)
        write_network(
            Network(Side(model, "image"), REGIONS, (IMAGE_VECTOR,), axes, sample), folder / IMAGE_FILE
        )
        width = model.settings["feature_dim"]
        return ImageSide(IMAGE_FILE, "regions", REGIONS, IMAGE_VECTOR, feature_dim=width, vision=vision)
    if isinstance(model, TwoTowers):
        extractor = model.extractor  # of the copy
    # A cell alone is no picture for a model that takes a fixed number of regions, such as one of pixels.
    parts = extractor.cells > 0 and not model.settings.get("num_regions")
    cells = grid_boxes(extractor.cells)[1:].tolist()
    network = pixels_to_vector(model, extractor, parts)
    write_network(network, folder / IMAGE_FILE)
    return ImageSide(
        IMAGE_FILE,
        "pixels",
        network.inputs,
        IMAGE_VECTOR,
        features=extractor.identity,
        parts=Parts(network.outputs[1], tuple(map(tuple, cells))) if parts else None,
        vision=extractor.name or vision,
    )


def random_regions(
    model: AbstractMatcher, images: int, regions: int, seed: int
) -> tuple[Float[Tensor, "I M F"], Bool[Tensor, "I M"]]:
    """Random regions; the masks have holes, and the first image has all of them."""
    if "feature_dim" not in model.settings:
        raise SelhnError(
            "the width of the regions is unknown: only a model with a setting feature_dim can be exported from regions"
        )
    generator = torch.Generator().manual_seed(seed)
    regions = model.settings.get("num_regions") or regions
    mask = _mask(images, regions, generator)[:, torch.randperm(regions, generator=generator)]
    return torch.randn(images, regions, model.settings["feature_dim"], generator=generator), mask


def random_texts(
    model: AbstractMatcher, texts: int, tokens: int, seed: int, pad_to: int | None = None
) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
    """Random tokens with padding; the first text is as long as they get."""
    assert model.tokenizer is not None
    generator = torch.Generator().manual_seed(seed)
    mask = _mask(texts, pad_to or min(tokens, most_tokens(model) or tokens), generator)
    ids = torch.randint(0, model.tokenizer.size, mask.shape, generator=generator)
    if pad_to:  # padding counts as text
        return ids, torch.ones_like(mask)
    return ids.masked_fill(~mask, model.tokenizer.pad_id), mask


def _mask(items: int, places: int, generator: torch.Generator) -> Bool[Tensor, "n N"]:
    lengths = torch.randint(1, places + 1, (items,), generator=generator)
    lengths[0] = places
    return torch.arange(places) < lengths[:, None]


def _differences(towers: Towers, model: AbstractMatcher, extractor: Extractor | None) -> dict[str, float]:
    """The largest difference of a coordinate on each side; refuses more than is tolerated."""
    largest = {"image": 0.0, "text": 0.0}
    pairs = _images(towers, model, extractor), _texts(towers, model)
    for side, of_side in zip(largest, pairs):
        for on, found, wanted in of_side:
            difference = float(np.abs(found - wanted).max()) if found.shape == wanted.shape else np.inf
            if not difference <= TOLERANCE:
                raise SelhnError(
                    f"the {side} tower differs by {difference:.1e} from {towers.name} on {on}; at most "
                    f"{TOLERANCE:.0e} is allowed: nothing was written; try other versions of torch and onnxruntime"
                )
            largest[side] = max(largest[side], difference)
    return largest


Compared = Iterator[tuple[str, np.ndarray, np.ndarray]]


def _texts(towers: Towers, model: AbstractMatcher) -> Compared:
    for seed, (texts, tokens) in enumerate(SHAPES, 1):
        ids, mask = random_texts(model, texts, tokens, seed, towers.description.text.pad_to)
        with in_eval_mode(model):
            wanted = model.encode_texts(ids.to(device_of(model)), mask.to(device_of(model)))
        yield f"{texts} x {tokens} tokens", towers.embed_tokens(ids.numpy(), mask.numpy()), _numbers(wanted)
    yield "sentences", towers.embed_texts(SENTENCES), _numbers(model.embed_texts(list(SENTENCES)))


def _images(towers: Towers, model: AbstractMatcher, extractor: Extractor | None) -> Compared:
    if extractor is None:
        for seed, (images, places) in enumerate(SHAPES, 1):
            regions, mask = random_regions(model, images, places, seed)
            with in_eval_mode(model):
                wanted = model.encode_images(regions.to(device_of(model)), mask.to(device_of(model)))
            yield (
                f"{images} x {places} regions",
                towers.embed_regions(regions.numpy(), mask.numpy()),
                _numbers(wanted),
            )
        return
    draw, torch_towers = np.random.default_rng(0), towers_of(model, extractor)
    noise = (draw.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in PICTURES)
    pictures = [Image.fromarray(own) for own in noise]
    yield "pictures", towers.embed_pictures(pictures), torch_towers.embed_pictures(pictures)
    found = towers.embed_parts(towers.prepare(pictures[0]))
    if found is not None:
        wanted_parts = torch_towers.embed_parts(torch_towers.prepare(pictures[0]))
        assert wanted_parts is not None
        yield "parts of a picture", found[0], wanted_parts[0]


def _numbers(vectors: Tensor) -> np.ndarray:
    return vectors.float().cpu().numpy()
