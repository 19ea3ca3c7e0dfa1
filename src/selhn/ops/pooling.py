"""The generalized pooling operator: Chen et al., Learning the Best Pooling Strategy for VSE, CVPR 2021.

Its main cost are weighted sums of sorted values. On a GPU nothing is sorted: a set has few members, so the
place of a value in the order is cheaper to count than to sort for: one pass over the set for each member, all
in registers. Equal values take their places in the order of the set.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.types import at_least_float32
from selhn.ops.gpu import fusable, side_by_side
from selhn.ops.gru import BiGRU, mirror_positions

MOST_MEMBERS = 128


class GPO(nn.Module):
    """A learnt weighted sum of sorted features, between the maximum and the mean.

    pooled_c = sum_k w_k * (k-th largest value of channel c),   w = softmax(linear(BiGRU(positions 0 .. L-1)) / 0.1)

    The weights depend on the number L of features only, so they are computed once per length, not per sample.
    The mask may have holes: only the number of remaining features matters. An empty set is pooled to zeros.
    """

    def __init__(self, position_dim: int = 32, hidden_dim: int = 32, temperature: float = 0.1):
        super().__init__()
        self.gru = BiGRU(position_dim, hidden_dim)
        self.linear = nn.Linear(hidden_dim, 1, bias=False)
        self.position_dim = position_dim
        self.temperature = temperature

    def forward(self, features: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"]) -> Float[Tensor, "B d"]:
        return self.pool(lambda: features, mask)

    def pool(
        self, make_features: Callable[[], Float[Tensor, "B M d"]], mask: Bool[Tensor, "B M"]
    ) -> Float[Tensor, "B d"]:
        """The same for features yet to be computed: weights do not depend on them, so both run at once."""
        features, weights = side_by_side(make_features, lambda: self.weights(mask.sum(1), mask.shape[1]))
        return pool_sorted(features, mask, weights)

    def weights(self, lengths: Int[Tensor, " B"], size: int) -> Float[Tensor, "B M"]:
        """The weights of the `size` sorted positions for sets of these lengths; they add up to 1."""
        # Not in half precision: the temperature multiplies every rounding error by ten.
        with torch.autocast(lengths.device.type, enabled=False):
            # An exported program does the same for all shapes.
            if torch.compiler.is_exporting() or len(lengths) <= size:
                return self._weights(lengths.clamp(min=1), size)
            every_length = torch.arange(1, size + 1, device=lengths.device)
            return self._weights(every_length, size).index_select(0, (lengths - 1).clamp(min=0))

    def _weights(self, lengths: Int[Tensor, " L"], size: int) -> Float[Tensor, "L M"]:
        weight = self.linear.weight
        positions = _positions(size, self.position_dim, weight.device, weight.dtype)[None]
        ahead, _ = self.gru.ahead(positions)  # the same for all lengths: a state never sees what follows it
        mirror = mirror_positions(lengths, size)
        back, _ = self.gru.back(positions[0][mirror])
        back = back.gather(1, mirror[:, :, None].expand_as(back))
        scores = at_least_float32(self.linear((ahead + back) / 2).squeeze(2)) / self.temperature
        padding = torch.arange(size, device=lengths.device) >= lengths[:, None]
        return scores.masked_fill(padding, -torch.inf).softmax(dim=1)


def pool_sorted(
    features: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"], weights: Float[Tensor, "B M"]
) -> Float[Tensor, "B d"]:
    """`sum_k weights[b, k] * (k-th largest value of features[b, :, c] under the mask)` for every channel c.

    The weights past the number of members are not read. On a GPU half precision is summed in float32.
    """
    # Without gradients sorting is fast enough, and compiling a kernel would take longer.
    trains = torch.is_grad_enabled() and features.dtype != torch.float64
    if trains and fusable(features, mask, weights) and features.shape[1] <= MOST_MEMBERS:
        from selhn.kernels.pooling import PoolSorted

        return PoolSorted.apply(features, mask, weights)
    ordered = features.masked_fill(~mask[:, :, None], -torch.inf).sort(dim=1, descending=True).values
    present = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
    ordered = ordered.masked_fill(~present[:, :, None], 0)
    return torch.einsum("bm,bmd->bd", weights.to(ordered.dtype), ordered)


def _positions(size: int, dim: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "M p"]:
    """PE(k, 2j) = sin(k / 10000^(2j/p)), PE(k, 2j+1) = cos of the same; k counts from 0."""
    exponents = torch.arange(0, dim, 2, device=device) / dim
    frequencies = torch.exp(-math.log(10000.0) * exponents)
    angles = torch.arange(size, device=device)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).to(dtype)
