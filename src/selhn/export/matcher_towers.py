"""A torch model in the place of towers, for research: `towers_of`."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.names import require_type
from selhn.eval.stored import digest_of
from selhn.models import AbstractMatcher, in_eval_mode, load_model, load_model_named_in_file
from selhn.pictures.extractor import Extractor, Prepared, grid_boxes, load_extractor
from selhn.pictures.ready import load_ready_fit
from selhn.pictures.two_towers import TwoTowers
from selhn.text import Tokenizer
from selhn.towers import AbstractTowers, Cutoff


def towers_of(
    matcher: AbstractMatcher, extractor: Extractor | str | None = None, device: torch.device | str = "cpu"
) -> "MatcherTowers":
    """Put a model with one vector per image and text in the place of towers.

    Args:
        extractor: turns pictures into the regions that the model was trained with, or a name that `load_extractor`
            takes; without one, only regions and vectors can be indexed. A model of another library has its own.
        device: of an extractor that is loaded by its name.

    Example:
        index = Index.build(towers_of(load_model("runs/rvse")), data.test)
    """
    require_type("matcher", matcher, AbstractMatcher, "open one with load_model(...)")
    if isinstance(matcher, TwoTowers):
        return MatcherTowers(matcher, matcher.require_own(extractor))
    if isinstance(extractor, str):
        return MatcherTowers(matcher, load_extractor(extractor, device), extractor)
    return MatcherTowers(matcher, extractor)


def width_of(matcher: AbstractMatcher) -> int:
    """Width of a model's vectors; a model without vectors to search by is refused."""
    return matcher.embed_texts(["a"]).shape[1]


class MatcherTowers(AbstractTowers):
    """The towers of a model, computed by torch on the device of the model, in evaluation mode.

    See `towers_of`.
    """

    def __init__(self, matcher: AbstractMatcher, extractor: Extractor | None = None, vision: str = ""):
        self.matcher, self.extractor = matcher, extractor
        self.width = width_of(matcher)
        self.name = matcher.name or type(matcher).__name__
        self.source, self.is_product = matcher.source, matcher.is_embedding
        self.feature_dim = matcher.settings.get("feature_dim")
        assert matcher.tokenizer is not None  # `width_of` has read a sentence
        self.tokenizer = MatcherTokenizer(matcher.tokenizer)
        if extractor is not None:
            self.has_parts, self.vision = True, vision or extractor.backbone.name
            if self.feature_dim not in (None, extractor.width):
                raise SelhnError(
                    f"{self.name} takes features of {self.feature_dim} numbers and {self.vision} gives "
                    f"{extractor.width}: name the extractor that it was trained with"
                )
            self.resized = extractor.resized

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Computed at every call: the model may have been trained in between."""
        return digest_of(self.matcher)

    @property
    def in_threads(self) -> bool:  # type: ignore[override]
        """On a GPU pictures are computed together."""
        return device_of(self.matcher).type == "cpu"

    @cached_property
    def features(self) -> str:  # type: ignore[override]
        return "" if self.extractor is None else self.extractor.identity

    @property
    def cutoff(self) -> Cutoff | None:  # type: ignore[override]
        """Known of the ready model."""
        ready = load_ready_fit()
        return Cutoff(**ready.cutoff()) if ready.model == self.digest else None

    def with_extractor(
        self, extractor: Extractor | str, device: torch.device | str = "cpu"
    ) -> "MatcherTowers":
        found = towers_of(self.matcher, extractor, device)
        found.source = self.source
        return found

    def to(self, device: torch.device | str) -> None:
        """Move the model, unless it is there already: a thread may be using it."""
        if any(part.device != torch.device(device) for part in self.matcher.state_dict().values()):
            self.matcher.to(device)

    def embed_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "T d"]:
        return _numbers(self.matcher.embed_texts(list(texts)))

    def embed_regions(
        self, regions: Float[np.ndarray, "I M F"], mask: Bool[np.ndarray, "I M"]
    ) -> Float[np.ndarray, "I d"]:
        return _numbers(self.matcher.embed_images(_tensor(regions), _tensor(mask)))

    def prepare(self, picture: Image.Image) -> Prepared:
        return super().prepare(picture) if self.extractor is None else self.extractor.prepare(picture)

    def embed_prepared(self, prepared: Sequence[Prepared]) -> Float[np.ndarray, "I d"]:
        assert self.extractor is not None
        return _numbers(self.matcher.embed_images(self.extractor.extract(prepared)))

    def embed_parts(
        self, prepared: Prepared
    ) -> tuple[Float[np.ndarray, "M d"], Float[np.ndarray, "M 4"]] | None:
        """Each region except the whole picture, encoded as if it were all that the picture has."""
        assert self.extractor is not None
        parts = ~torch.isclose(prepared.boxes, grid_boxes(1)[:1]).all(1)
        if not bool(parts.any()):
            return None
        regions = self.extractor.extract([prepared])[0]
        return _numbers(self.matcher.embed_images(regions[parts][:, None])), prepared.boxes[parts].numpy()

    def score(
        self, images: Float[np.ndarray, "I d"], texts: Float[np.ndarray, "T d"]
    ) -> Float[np.ndarray, "I T"]:
        device = device_of(self.matcher)
        with in_eval_mode(self.matcher):
            return _numbers(self.matcher.score(_tensor(images).to(device), _tensor(texts).to(device)))

    def save(self, folder: Path) -> None:
        self.matcher.save(folder)


class MatcherTokenizer:
    """The tokenizer of a model, with ids and masks in numpy."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.ordinary = tokenizer.kinds.ordinary.cpu().numpy()
        self.inner = tokenizer.kinds.inner.cpu().numpy()

    def encode(self, texts: Sequence[str]) -> tuple[Int[np.ndarray, "T N"], Bool[np.ndarray, "T N"]]:
        tokens, mask = self._tokenizer.encode(list(texts))
        return tokens.cpu().numpy(), mask.cpu().numpy()

    def spell(self, ids: Sequence[int]) -> list[str]:
        return self._tokenizer.spell(list(ids))


def open_model(path: Path | str) -> MatcherTowers:
    """The towers of anything that `load_model` opens: a saved model, a run, or both towers of another library."""
    return towers_of(load_model(path))


def open_model_named_in_file(name: str) -> MatcherTowers | None:
    """The towers of a model of another library that a file names, if it is on this machine; None for other names."""
    model = load_model_named_in_file(name)
    return None if model is None else towers_of(model)


def _tensor(array: Any) -> Tensor:
    """An array as a tensor; one that may not be written to, such as a mapped file, is copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()
