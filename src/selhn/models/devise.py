"""DeViSE: Frome et al., A Deep Visual-Semantic Embedding Model, NIPS 2013, with sentences in place of labels.

    image = unit(M x)      text = unit(mean of the vectors of its words)      s = image . text

The word vectors are never trained; the authors' are those of a skip-gram model. `Triplet(margin=0.1,
anchors="images")` is their loss: sum over j != y of [0.1 - t_y M x + t_j M x]+.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from selhn.models.builders import Words, xavier
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.models.table import Paper, model
from selhn.ops import mean_of, unit


class DeViSE(AbstractMatcher):
    """A linear map of an image's mean region into the space of fixed word vectors."""

    is_embedding = True

    def __init__(self, common: Words, dim: int, word_vectors: Path | str | None, normalise_images: bool):
        super().__init__(common.tokenizer)
        self.normalise_images = normalise_images
        self.fc = xavier(common.feature_dim, dim)
        known = None if word_vectors is None else common.vectors_from(word_vectors, dim)[0]
        words = unit(torch.randn(common.num_words, dim) if known is None else known)
        if common.tokenizer is not None:
            words[common.tokenizer.kinds.special] = 0  # they are in every sentence and carry no meaning
        self.words: Tensor
        self.register_buffer("words", words)
        self.settings = {"vocab_size": common.num_words, "word_vectors": None}  # loading needs no other file
        self.watched = {"image": self.fc, "image_fc": self.fc}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        features = mean_of(self.fc(regions), all_real(regions, region_mask))
        return unit(features) if self.normalise_images else features

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "T d"]:
        return unit(mean_of(embedding(tokens, self.words), all_real(tokens, token_mask)))


_PAPER = Paper("Frome et al., NIPS 2013", "https://papers.nips.cc/paper/5204")


@model(_PAPER)
def devise(
    common: Words, dim: int = 300, word_vectors: str | Path | None = None, normalise_images: bool = True
) -> DeViSE:
    """DeViSE with the word vectors of a text file, as GloVe's; without one, words are random directions."""
    # Paper: M x keeps its length (normalise_images=False); a few long vectors then win every search.
    return DeViSE(common, dim, word_vectors, normalise_images)
