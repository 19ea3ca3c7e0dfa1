"""Two networks of one architecture as one matcher: what co-teaching trains (Huang et al., NCR, NeurIPS 2021)."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from selhn.base.types import Batch, Match
from selhn.kernels import side_by_side
from selhn.layers import Fragments
from selhn.models.base import AbstractMatcher
from selhn.models.cross_attention import CrossAttention
from selhn.models.vse import dot_scores


class Twins(AbstractMatcher):
    """Two matchers that differ in their weights only: a batch gets (2, B, B) scores, all else the mean of both.

    `create_model(name, networks=2)` makes them. What they encode is one vector or one set of fragments that is twice as
    wide, one network's beside the other's, so that evaluation, saving and search know nothing of it.
    """

    def __init__(self, first: AbstractMatcher, second: AbstractMatcher):
        super().__init__(first.tokenizer)
        self.networks = nn.ModuleList([first, second])
        self.is_embedding = first.is_embedding
        self.capturable = first.capturable

    @property
    def both(self) -> tuple[AbstractMatcher, AbstractMatcher]:
        """The networks."""
        first, second = self.networks
        assert isinstance(first, AbstractMatcher)
        assert isinstance(second, AbstractMatcher)
        return first, second

    def encode_images(self, regions: Float[Tensor, "I M F"], region_mask: Bool[Tensor, "I M"] | None = None) -> Any:
        """Every image once by each network."""
        return self._join(*(network.encode_images(regions, region_mask) for network in self.both))

    def encode_texts(self, tokens: Int[Tensor, "T N"], token_mask: Bool[Tensor, "T N"] | None = None) -> Any:
        """Every text once by each network."""
        return self._join(*(network.encode_texts(tokens, token_mask) for network in self.both))

    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """The mean of both networks' scores."""
        return self.to_scores(self.rank_scores(images, texts))

    def rank_scores(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        """The mean of both; where scores are sigmoids, the logit of their mean, which still differs where they tie."""
        if self.is_embedding:
            return dot_scores(images, texts)
        parts = zip(self.both, self._parts(images), self._parts(texts))
        first, second = (network.rank_scores(own_images, own_texts) for network, own_images, own_texts in parts)
        if not self._sigmoid:
            return (first + second) / 2
        # log of p1 + p2 less that of (1 - p1) + (1 - p2): nothing is lost where both are near 0 or 1.
        return torch.logaddexp(logsigmoid(first), logsigmoid(second)) - torch.logaddexp(
            logsigmoid(-first), logsigmoid(-second)
        )

    def to_scores(self, numbers: Float[Tensor, "I T"]) -> Float[Tensor, "I T"]:
        """The numbers themselves, or their sigmoids."""
        return self.both[0].to_scores(numbers)

    def forward(self, batch: Batch) -> Match:
        """The scores of each network, apart from the other's."""
        first, second = self.both
        matches = side_by_side(lambda: first(batch), lambda: second(batch))
        aux = {name: matches[0].aux[name] + matches[1].aux[name] for name in matches[0].aux}
        return Match(torch.stack([match.scores for match in matches]), aux)

    def pretrained_parameters(self) -> Iterable[nn.Parameter]:
        """Those of both."""
        return [parameter for network in self.both for parameter in network.pretrained_parameters()]

    def watched(self) -> dict[str, nn.Module]:
        """The parts of the first network under their names, those of the second under names of their own."""
        first, second = (network.watched() for network in self.both)
        return {**first, **{f"second_{name}": module for name, module in second.items()}}

    def resolved_settings(self) -> dict[str, Any]:
        """Those of each, and that there are two."""
        return {**self.both[0].resolved_settings(), "networks": 2}

    @property
    def _sigmoid(self) -> bool:
        network = self.both[0]
        return isinstance(network, CrossAttention) and network.sigmoid

    def _join(self, first: Any, second: Any) -> Any:
        if isinstance(first, Fragments):
            assert isinstance(second, Fragments)
            whole = None
            if first.whole is not None and second.whole is not None:
                whole = torch.cat([first.whole, second.whole], -1)
            return Fragments(torch.cat([first.vectors, second.vectors], -1), first.mask, whole)
        # The product of joined unit vectors is then the mean of the two cosines.
        scale = math.sqrt(0.5) if self.is_embedding else 1.0
        return torch.cat([first, second], -1) * scale

    def _parts(self, joined: Any) -> tuple[Any, Any]:
        if isinstance(joined, Fragments):
            vectors = joined.vectors.chunk(2, -1)
            wholes = (None, None) if joined.whole is None else joined.whole.chunk(2, -1)
            first, second = (Fragments(own, joined.mask, whole) for own, whole in zip(vectors, wholes))
            return first, second
        first, second = joined.chunk(2, -1)
        return first, second
