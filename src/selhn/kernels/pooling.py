"""Weighted sums of sorted values, without sorting: the main cost of generalised pooling.

A set has few members, so the place of a value in the order is cheaper to count than to sort for: one pass
over the set for each member, all in registers. Equal values take their places in the order of the set.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.kernels.gpu import fusable

MOST_MEMBERS = 128


def pool_sorted(
    features: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"], weights: Float[Tensor, "B M"]
) -> Float[Tensor, "B d"]:
    """`sum_k weights[b, k] * (k-th largest value of features[b, :, c] under the mask)` for every channel c.

    The weights past the number of members are not read. On a GPU half precision is summed in float32.
    """
    # Without gradients sorting is fast enough, and compiling a kernel would take longer.
    trains = torch.is_grad_enabled() and features.dtype != torch.float64
    if trains and fusable(features, mask, weights) and features.shape[1] <= MOST_MEMBERS:
        from selhn.kernels.pooling_triton import PoolSorted

        return PoolSorted.apply(features, mask, weights)
    ordered = features.masked_fill(~mask[:, :, None], -torch.inf).sort(dim=1, descending=True).values
    present = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
    ordered = ordered.masked_fill(~present[:, :, None], 0)
    return torch.einsum("bm,bmd->bd", weights.to(ordered.dtype), ordered)
