"""The interface of a matcher: encode each image once, each text once, score all pairs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.types import SIDE_INPUTS, Batch, Match
from selhn.models.saved import write_folder
from selhn.ops import side_by_side
from selhn.text import Tokenizer, check_texts

Regions = Float[Tensor, "I M F"]
RegionMask = Bool[Tensor, "I M"]
Tokens = Int[Tensor, "T N"]
TokenMask = Bool[Tensor, "T N"]

ITEMS_AT_ONCE = 512
"""Number of images, or texts, embedded at a time."""


class AbstractMatcher(nn.Module, ABC):
    """Images and texts to `scores[image, text]`.

    A subclass implements both encoders, passes its tokenizer on, and has a `score` unless it `is_embedding`. The
    encoders may return anything that can be indexed by rows: one vector per item, or fragments with a mask.
    """

    is_embedding: bool = False
    """Whether images and texts are one vector each, (I, d) and (T, d), and scores are their dot products."""

    side: Mapping[str, bool] = MappingProxyType({})
    """Side inputs (`SIDE_INPUTS`) that its encoders take by name, and whether each is required."""

    def __init__(self, tokenizer: Tokenizer | None = None):
        super().__init__()
        self.tokenizer = tokenizer
        self.name: str | None = None
        """Its name in `MODELS`; None for a model of your own."""
        self.source: str | None = None
        """The name by which `load_model` opens a model of another library; an index has no copy of it."""
        self.settings: dict[str, Any] = {}
        """What `create_model` needs to build the same model again; a subclass adds its own entries."""
        self.pairs_apart = False
        """Whether `logits` can score a pair without the others, in training too, from `Fragments` of both."""
        self.images_apart = True
        """Whether several processes may each score some images of a batch with all texts, in training too."""
        self.watched: dict[str, nn.Module] = {}
        """Parts whose gradient norms are logged: both encoders, the image FC, the last text layer."""

    @abstractmethod
    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Any:
        """Encode every image once; without a mask all regions are real."""

    @abstractmethod
    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Any:
        """Encode every text once; without a mask all tokens are real."""

    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """Score every image against every text: for embeddings, the products of their vectors."""
        if not self.is_embedding:
            raise NotImplementedError(
                f"{type(self).__name__} is not an embedding, and needs a score of its own"
            )
        return dot_scores(images, texts)

    def logits(self, images: Any, texts: Any, aligned: bool = False) -> Float[Tensor, "..."]:
        """What pairs are ranked by, (I, T): the scores or, if these saturate, the input of `activation`.

        With `aligned`, (P,): only image p with text p, for models that can score a pair without the others.
        """
        if aligned:
            raise SelhnError(f"{type(self).__name__} scores all images against all texts only: call score")
        return self.score(images, texts)

    def activation(self, logits: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
        """The scores from the `logits`."""
        return logits

    def forward(self, batch: Batch) -> Match:
        """The scores of a batch of pairs, positives on the diagonal.

        A model that trains on more than its scores has a `forward` of its own, with its further losses in `aux`.
        """
        return Match(self.score(*encode_batch(self, batch)))

    def tokenize(self, texts: list[str]) -> tuple[Tokens, TokenMask]:
        """Token ids and mask of some sentences, as `encode_texts` takes them."""
        if self.tokenizer is None:
            raise SelhnError(
                "this model was made with a vocabulary size but no vocabulary: "
                "pass tokenizer=Vocabulary.build(captions) to create_model, or set model.tokenizer"
            )
        return self.tokenizer.encode(texts)

    def embed_texts(self, texts: list[str]) -> Float[Tensor, "T d"]:
        """One vector per sentence, on the model's device, in evaluation mode and without gradients."""
        taken_side(self, {}, "texts")
        if not isinstance(texts, str) and len(texts) == 0:
            return self.embed_texts(["a"])[:0]
        check_texts(texts)
        device = device_of(self)
        # Group texts of similar length, so that a block has little padding.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        vectors = []
        with in_eval_mode(self):
            for first in range(0, len(texts), ITEMS_AT_ONCE):
                tokens, mask = self.tokenize(
                    [texts[number] for number in order[first : first + ITEMS_AT_ONCE]]
                )
                vectors.append(self._vectors(self.encode_texts(tokens.to(device), mask.to(device))))
        return torch.cat(vectors)[torch.tensor(order, device=device).argsort()]

    def embed_images(self, regions: Regions, mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        """One vector per image, on the model's device, in evaluation mode and without gradients."""
        taken_side(self, {}, "images")
        width = self.settings.get("feature_dim", regions.shape[-1])
        if regions.ndim != 3 or regions.shape[2] != width:
            raise SelhnError(
                f"the regions have shape {tuple(regions.shape)}: give (I, M, {width}) for this model"
            )
        weight, vectors = next(self.parameters()), []
        mask = all_real(regions, mask)
        if mask.shape != regions.shape[:2]:
            raise SelhnError(
                f"the mask has shape {tuple(mask.shape)}: give {tuple(regions.shape[:2])}, True for each real region"
            )
        with in_eval_mode(self):
            for own, own_mask in zip(regions.split(ITEMS_AT_ONCE), mask.split(ITEMS_AT_ONCE), strict=True):
                vectors.append(self._vectors(self.encode_images(own.to(weight), own_mask.to(weight.device))))
        return torch.cat(vectors)

    def _vectors(self, encoded: Any) -> Float[Tensor, "n d"]:
        if not isinstance(encoded, Tensor) or encoded.ndim != 2:
            raise SelhnError(
                f"{self.name or type(self).__name__} compares regions with words and has no single vector "
                "per image or text: use an embedding model, such as rvse, and re-rank its results with this one"
            )
        return encoded

    def save(self, out: Path | str) -> None:
        """Write everything `load_model` needs into a folder; a model in it is replaced in one step."""
        if self.name is None:
            raise SelhnError(
                "only a model made by create_model can be saved as a folder: "
                "register yours with register_model, or save its state_dict() yourself"
            )
        write_folder(Path(out), self.name, self.settings, self.state_dict(), self.tokenizer)


def taken_side(
    model: AbstractMatcher, given: Mapping[str, Tensor], of: Literal["images", "texts"] | None = None
) -> dict[str, Tensor]:
    """The side inputs of images, texts or both that a model takes; required ones must be given."""
    own = [name for name in model.side if of in (None, SIDE_INPUTS[name].of)]
    missing = next((name for name in own if model.side[name] and name not in given), None)
    if missing is not None:
        raise SelhnError(
            f"{model.name or type(model).__name__} needs the {missing} of {SIDE_INPUTS[missing].of}, which "
            f"are not given here: {SIDE_INPUTS[missing].words}"
        )
    return {name: given[name] for name in own if name in given}


def trains_on_more(model: AbstractMatcher) -> bool:
    """Whether a model may have losses of its own besides the one on its scores."""
    return type(model).forward is not AbstractMatcher.forward


def members(model: AbstractMatcher) -> tuple[AbstractMatcher, ...]:
    """The networks in a model: itself, or `both` that teach each other."""
    return getattr(model, "both", (model,))


def encode_batch(model: AbstractMatcher, batch: Batch) -> tuple[Any, Any]:
    """The images and the texts of a batch, at the same time in a step that is being recorded."""
    return side_by_side(
        lambda: model.encode_images(
            batch.regions, batch.region_mask, **taken_side(model, batch.side, "images")
        ),
        lambda: model.encode_texts(batch.tokens, batch.token_mask, **taken_side(model, batch.side, "texts")),
    )


def all_real(items: Tensor, mask: Bool[Tensor, "n K"] | None) -> Bool[Tensor, "n K"]:
    """The mask, or one that is True everywhere for the first two axes of `items`."""
    return torch.ones(items.shape[:2], dtype=torch.bool, device=items.device) if mask is None else mask


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module returns to its previous mode."""
    training = [module for module in model.modules() if module.training]  # none in a model that is served
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:  # one by one: some modules may have been in eval mode, and stay there
            module.training = True


def dot_scores(images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
    """`images @ texts.T`, never in half precision: SelHN compares scores that differ by 0.01."""
    with torch.autocast(images.device.type, enabled=False):
        return images @ texts.T
