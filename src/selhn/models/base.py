"""What a matcher is: encode each image once, each text once, score all pairs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.kernels import side_by_side
from selhn.models.saved import write_folder
from selhn.text import Tokenizer

ITEMS_AT_ONCE = 512
"""Images, or texts, that are embedded at a time."""


class AbstractMatcher(nn.Module, ABC):
    """Images and texts to `scores[image, text]`.

    A subclass gives the three abstract methods below and passes its tokenizer here. What the encoders return is the
    model's own affair (an embedding, or fragments with a mask), as long as it can be cut by rows.
    """

    is_embedding: bool = False
    """Whether an image and a text are one vector each, (I, d) and (T, d), and their score is the dot product."""

    capturable: bool = True
    """Whether a training step is the same work whatever the values are, so that a GPU can record and replay it."""

    pairs_apart: bool = False
    """Whether there is a `score_pairs`, and it gives what `score` gives in training too: a score depends on its own
    image and text alone, and no statistics run over pairs."""

    def __init__(self, tokenizer: Tokenizer | None = None):
        super().__init__()
        self.tokenizer = tokenizer
        self.name: str | None = None
        """The line of `MODELS` it was made from; None for a model of your own."""
        self.settings: dict[str, Any] = {}
        """What `create_model` needs to make its like."""

    @abstractmethod
    def encode_images(self, regions: Float[Tensor, "I M F"], region_mask: Bool[Tensor, "I M"] | None = None) -> Any:
        """Every image once; without a mask all regions are real."""

    @abstractmethod
    def encode_texts(self, tokens: Int[Tensor, "T N"], token_mask: Bool[Tensor, "T N"] | None = None) -> Any:
        """Every text once; without a mask all tokens are real."""

    @abstractmethod
    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """Every image against every text."""

    def score_pairs(self, images: Any, texts: Any) -> Float[Tensor, " P"]:
        """Image p with text p and no other, as many images as texts; a model may have it or not (see `pairs_apart`)."""
        raise SelhnError(
            f"{type(self).__name__} scores all images against all texts only: call score, or give it a score_pairs"
        )

    def rank_pairs(self, images: Any, texts: Any) -> Float[Tensor, " P"]:
        """What image p with text p is ranked by, as `rank_scores` is for all pairs."""
        return self.score_pairs(images, texts)

    def rank_scores(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """What evaluation and search rank by: the scores, or where these saturate and tie, a number behind them."""
        return self.score(images, texts)

    def to_scores(self, numbers: Float[Tensor, "I T"]) -> Float[Tensor, "I T"]:
        """The scores from what `rank_scores` gave, so that nothing is computed twice for both."""
        return numbers

    def auxiliary(self, batch: Batch, images: Any, texts: Any) -> dict[str, Tensor]:
        """Further losses of a model that trains on more than its scores."""
        return {}

    def pretrained_parameters(self) -> Iterable[nn.Parameter]:
        """Weights that come from elsewhere, such as a BERT, and want a lower learning rate."""
        return ()

    def watched(self) -> dict[str, nn.Module]:
        """Parts whose gradients are worth a line in the log: both encoders, the image FC, the last text layer."""
        return {}

    def resolved_settings(self) -> dict[str, Any]:
        """Settings that are known only once the model is made, such as the configuration of a BERT read from disk."""
        return {}

    def encode(self, batch: Batch) -> tuple[Any, Any]:
        """The images and the texts of a batch."""
        return side_by_side(
            lambda: self.encode_images(batch.regions, batch.region_mask),
            lambda: self.encode_texts(batch.tokens, batch.token_mask),
        )

    def forward(self, batch: Batch) -> Match:
        """The scores of a batch of pairs, positives on the diagonal."""
        images, texts = self.encode(batch)
        return Match(self.score(images, texts), self.auxiliary(batch, images, texts))

    def tokenize(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        """Token ids and mask of some sentences, as `encode_texts` takes them."""
        if self.tokenizer is None:
            raise SelhnError(
                "this model was made with a vocabulary size and no vocabulary: "
                "pass tokenizer=Vocabulary.build(captions) to create_model, or set model.tokenizer"
            )
        return self.tokenizer.encode(texts)

    def embed_texts(self, texts: list[str]) -> Float[Tensor, "T d"]:
        """One vector per sentence, on the model's device, in evaluation mode and without gradients."""
        if not texts:
            return self.embed_texts(["a"])[:0]
        device = device_of(self)
        # Texts of similar length together, so that little of a block is padding.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        vectors = []
        with in_eval_mode(self):
            for first in range(0, len(texts), ITEMS_AT_ONCE):
                tokens, mask = self.tokenize([texts[number] for number in order[first : first + ITEMS_AT_ONCE]])
                vectors.append(self._vectors(self.encode_texts(tokens.to(device), mask.to(device))))
        return torch.cat(vectors)[torch.tensor(order, device=device).argsort()]

    def embed_images(
        self, regions: Float[Tensor, "I M F"], mask: Bool[Tensor, "I M"] | None = None
    ) -> Float[Tensor, "I d"]:
        """One vector per image, on the model's device, in evaluation mode and without gradients."""
        weight = next(self.parameters())
        mask = all_real(regions, mask)
        with in_eval_mode(self):
            return torch.cat(
                [
                    self._vectors(self.encode_images(own.to(weight), own_mask.to(weight.device)))
                    for own, own_mask in zip(regions.split(ITEMS_AT_ONCE), mask.split(ITEMS_AT_ONCE), strict=True)
                ]
            )

    def _vectors(self, encoded: Any) -> Float[Tensor, "n d"]:
        if not isinstance(encoded, Tensor) or encoded.ndim != 2:
            raise SelhnError(
                f"{self.name or type(self).__name__} compares regions with words and has no single vector per image "
                "or text: use an embedding model, such as rvse, and re-rank its results with this one"
            )
        return encoded

    def parameter_groups(self, lr: float, text_lr_factor: float = 0.1) -> list[dict[str, Any]]:
        """Trainable parameters for an optimiser; pretrained ones learn at `lr * text_lr_factor`."""
        pretrained = [p for p in self.pretrained_parameters() if p.requires_grad]
        known = set(map(id, pretrained))
        own = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        groups = [{"params": own, "lr": lr}, {"params": pretrained, "lr": lr * text_lr_factor}]
        return [group for group in groups if group["params"]]

    def save(self, folder: Path | str) -> None:
        """Write all that `load_model` needs into a folder; one that is already there is replaced in one step."""
        if self.name is None:
            raise SelhnError(
                "only a model made by create_model can be saved as a folder: add yours to MODELS, "
                "or keep its state_dict() yourself"
            )
        write_folder(Path(folder), self.name, self.settings, self.state_dict(), self.tokenizer)


def all_real(items: Tensor, mask: Bool[Tensor, "n K"] | None) -> Bool[Tensor, "n K"]:
    """The mask, or one that is True everywhere for the first two axes of `items`."""
    return torch.ones(items.shape[:2], dtype=torch.bool, device=items.device) if mask is None else mask


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every part is in the mode it had before."""
    training = [module for module in model.modules() if module.training]  # none in a model that is served
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:  # one by one: parts may have been put into eval mode, and stay there
            module.training = True
