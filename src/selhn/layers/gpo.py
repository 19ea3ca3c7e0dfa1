"""The generalized pooling operator: Chen et al., Learning the Best Pooling Strategy for VSE, CVPR 2021."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.layers.gru import BiGRU, mirror_positions


class GPO(nn.Module):
    """A learnt weighted sum of sorted features, between the maximum and the mean.

    pooled_c = sum_k w_k * (k-th largest value of channel c),   w = softmax(linear(BiGRU(positions 0 .. L-1)) / 0.1)

    The weights know the number L of features and nothing else, so they are computed once a length and not once a
    sample. The mask may have holes: what counts is how many features are left. An empty set is pooled to zeros.
    """

    def __init__(self, position_dim: int = 32, hidden_dim: int = 32, temperature: float = 0.1):
        super().__init__()
        self.gru = BiGRU(position_dim, hidden_dim)
        self.linear = nn.Linear(hidden_dim, 1, bias=False)
        self.position_dim = position_dim
        self.temperature = temperature

    def forward(self, features: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"]) -> Float[Tensor, "B d"]:
        """One vector for every set of features."""
        lengths = mask.sum(1)
        weights = self.weights(lengths, mask.shape[1])
        ordered = features.masked_fill(~mask[:, :, None], -torch.inf).sort(dim=1, descending=True).values
        ordered = ordered.masked_fill(~first_positions(lengths, mask.shape[1])[:, :, None], 0)
        return torch.einsum("bm,bmd->bd", weights.to(ordered.dtype), ordered)

    def weights(self, lengths: Int[Tensor, " B"], size: int) -> Float[Tensor, "B M"]:
        """The weights of the `size` sorted positions for sets of these lengths; they add up to 1."""
        # Without half precision: the temperature multiplies every rounding error by ten.
        with torch.autocast(lengths.device.type, enabled=False):
            if len(lengths) <= size:
                return self._weights(lengths.clamp(min=1), size)
            every_length = torch.arange(1, size + 1, device=lengths.device)
            return self._weights(every_length, size)[(lengths - 1).clamp(min=0)]

    def _weights(self, lengths: Int[Tensor, " L"], size: int) -> Float[Tensor, "L M"]:
        positions = self._positions(size)[None]
        ahead, _ = self.gru.ahead(positions)  # the same for all lengths: a state never sees what follows it
        mirror = mirror_positions(lengths, size)
        back, _ = self.gru.back(positions[0][mirror])
        back = back.gather(1, mirror[:, :, None].expand_as(back))
        scores = self.linear((ahead + back) / 2).squeeze(2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / self.temperature
        return scores.masked_fill(~first_positions(lengths, size), -torch.inf).softmax(dim=1)

    def _positions(self, size: int) -> Float[Tensor, "M p"]:
        """PE(k, 2j) = sin(k / 10000^(2j/p)), PE(k, 2j+1) = cos of the same; k counts from 0."""
        weight = self.linear.weight
        exponents = torch.arange(0, self.position_dim, 2, device=weight.device) / self.position_dim
        frequencies = torch.exp(-math.log(10000.0) * exponents)
        angles = torch.arange(size, device=weight.device)[:, None] * frequencies
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).to(weight.dtype)


def first_positions(lengths: Int[Tensor, " B"], size: int) -> Bool[Tensor, "B M"]:
    """True at the first `length` of `size` positions."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]
