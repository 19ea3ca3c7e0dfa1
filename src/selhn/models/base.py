"""What a matcher is: encode each image once, each text once, score all pairs."""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.text import Tokenizer
from selhn.types import Batch, Match


class AbstractMatcher(nn.Module, ABC):
    """Images and texts to `scores[image, text]`.

    A subclass gives the three methods below and passes its tokenizer here. What the encoders return is the model's
    own affair (an embedding, or fragments with a mask), as long as it can be cut by rows.
    """

    def __init__(self, tokenizer: Tokenizer | None = None):
        super().__init__()
        self.tokenizer = tokenizer

    @abstractmethod
    def encode_images(self, regions: Float[Tensor, "I M F"], region_mask: Bool[Tensor, "I M"]) -> Any:
        """Every image once."""

    @abstractmethod
    def encode_texts(self, tokens: Int[Tensor, "T N"], token_mask: Bool[Tensor, "T N"]) -> Any:
        """Every text once."""

    @abstractmethod
    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """Every image against every text."""

    def auxiliary(self, batch: Batch, images: Any, texts: Any) -> dict[str, Tensor]:
        """Further losses of a model that trains on more than its scores."""
        return {}

    def forward(self, batch: Batch) -> Match:
        """The scores of a batch of pairs, positives on the diagonal."""
        images = self.encode_images(batch.regions, batch.region_mask)
        texts = self.encode_texts(batch.tokens, batch.token_mask)
        return Match(self.score(images, texts), self.auxiliary(batch, images, texts))

    def tokenize(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        """Token ids and mask of some sentences, as `encode_texts` takes them."""
        if self.tokenizer is None:
            raise ValueError(
                "this model was made with a vocabulary size and no vocabulary: "
                "pass tokenizer=Vocabulary.build(captions) to create_model, or set model.tokenizer"
            )
        return self.tokenizer.encode(texts)
