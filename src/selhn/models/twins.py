"""Two networks as one matcher, for co-teaching (Huang et al., NCR, NeurIPS 2021)."""

import math
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from selhn.base.types import Batch, Match
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, dot_scores
from selhn.ops import Fragments, side_by_side


class Twins(AbstractMatcher):
    """Two matchers with different weights: a batch gets (2, B, B) scores, everything else the mean of both.

    `create_model(name, networks=2)` makes them. What they encode is one vector or one set of fragments that
    is twice as wide, the two networks side by side: evaluation, saving and search need no change.
    """

    def __init__(self, first: AbstractMatcher, second: AbstractMatcher):
        super().__init__(first.tokenizer)
        self.networks = nn.ModuleList([first, second])
        self.is_embedding, self.side = first.is_embedding, dict(first.side)
        self.settings = {**first.settings, "networks": 2}
        self.watched = {**first.watched, **{f"second_{name}": part for name, part in second.watched.items()}}

    @property
    def both(self) -> tuple[AbstractMatcher, AbstractMatcher]:
        return cast(tuple[AbstractMatcher, AbstractMatcher], tuple(self.networks))

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None, **side: Tensor) -> Any:
        return self._join(*(network.encode_images(regions, region_mask, **side) for network in self.both))

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None, **side: Tensor) -> Any:
        return self._join(*(network.encode_texts(tokens, token_mask, **side) for network in self.both))

    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        return self.activation(self.logits(images, texts))

    def logits(self, images: Any, texts: Any, aligned: bool = False) -> Float[Tensor, "..."]:
        """The mean of both; of sigmoids the logit of their mean, which still differs where they tie."""
        if aligned:
            return super().logits(images, texts, aligned)
        if self.is_embedding:
            return dot_scores(images, texts)
        parts = zip(self.both, images.chunk(2, -1), texts.chunk(2, -1))
        first, second = (network.logits(own_images, own_texts) for network, own_images, own_texts in parts)
        if not getattr(self.both[0], "sigmoid", False):
            return (first + second) / 2
        # log of p1 + p2 less that of (1 - p1) + (1 - p2): nothing is lost where both are near 0 or 1.
        return torch.logaddexp(logsigmoid(first), logsigmoid(second)) - torch.logaddexp(
            logsigmoid(-first), logsigmoid(-second)
        )

    def activation(self, logits: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
        return self.both[0].activation(logits)

    def forward(self, batch: Batch) -> Match:
        """The scores of each network separately."""
        first, second = self.both
        matches = side_by_side(lambda: first(batch), lambda: second(batch))
        aux = {name: matches[0].aux[name] + matches[1].aux[name] for name in matches[0].aux}
        return Match(torch.stack([match.scores for match in matches]), aux)

    def _join(self, first: Any, second: Any) -> Any:
        if isinstance(first, Fragments):
            return first.beside(second)
        # The product of joined unit vectors is then the mean of the two cosines.
        scale = math.sqrt(0.5) if self.is_embedding else 1.0
        return torch.cat([first, second], -1) * scale
