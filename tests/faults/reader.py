"""What a row of the table of readers is, and what the examples share."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_cases import FEATURE_DIM, make_batch, make_model

from selhn.data import Data, DenseFeatures, Split


@dataclass(frozen=True)
class Reader:
    """How to make a good example in an empty folder, and how to read all of it."""

    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    """Returns all that was read; two readings are compared by `digest`."""
    sealed: Callable[[Path], bool] = lambda path: False
    """Whether a checksum covers a changed file as it is now: then the change may not go unnoticed."""
    seal: Callable[[Path], object] | None = None
    """Makes the checksums fit a changed example, as whoever forges one would."""
    finite: bool = False
    """Whether NaN and infinity must be refused."""
    share: float = 1.0
    """Of the cases that others get, for readers that take long."""


def files(*patterns: str) -> Callable[[Path], bool]:
    """Whether a path ends with one of some patterns."""
    return lambda path: any(path.match(pattern) for pattern in patterns)


def digest(value: Any) -> str:
    """Identifies everything that was read."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.hexdigest()


def is_finite(value: Any) -> bool:
    """Whether all tensors of what was read are."""
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    return all(map(is_finite, inner))


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        found.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, (list, tuple, set)):
        found.update(f"{len(value)}".encode())
        for one in value:
            _add(found, one)
    elif dataclasses.is_dataclass(value):
        _add(found, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    else:
        found.update(f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass"))


@cache
def small_data():
    """Eight images in every split, each with two captions."""

    def split(seed, name):
        generator = torch.Generator().manual_seed(seed)
        features = DenseFeatures(torch.rand(8, 3, FEATURE_DIM, generator=generator).numpy())
        captions = [f"word{n} word{(n * 5 + seed) % 35} word{n % 7}" for n in range(16)]
        return Split(
            name,
            features,
            captions,
            torch.arange(8).repeat_interleave(2),
            [f"{name}{n}.jpg" for n in range(8)],
        )

    return Data("small", split(1, "train"), split(2, "dev"), split(3, "test"), source="own:small")


def of_model(model):
    """What a model is, and what it answers."""
    batch = make_batch()
    if model.tokenizer is None:
        return model.state_dict(), model.settings, model.name
    tokens, mask = model.tokenizer.encode(["word1 word2 a dog jumps", "word3"])
    scores = model.score(
        model.encode_images(batch.regions, batch.region_mask), model.encode_texts(tokens, mask)
    )
    return {
        "state": model.state_dict(),
        "settings": model.settings,
        "name": model.name,
        "tokens": tokens,
        "scores": scores,
    }


def of_data(data):
    return [of_split(data[name]) for name in ("train", "dev", "test")]


def of_split(split):
    regions = split.features.gather(torch.arange(split.num_images))
    return [
        split.name,
        regions,
        list(split.captions),
        split.image_of_text,
        list(split.image_names),
        dict(split.side),
        split.folds,
    ]


@cache
def small_model():
    return make_model("rvse")


def fresh_model():
    return make_model("rvse").train()
