"""What every loss here is made of: a few numbers an anchor, taken over the anchor's negatives.

Image i is an anchor among the texts (row i of `scores`), text i among the images (column i). Both directions are
reduced by the same function of "rows", so a loss is written once and for both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Statistic = Literal["hardest", "hardest_below", "hardest_up_to", "hinge_sum"]


@dataclass(frozen=True)
class AnchorStatistics:
    """Statistics of the 2B anchors of a batch; axis -2 is (image anchors, text anchors).

    Only those in `values` were computed; a loss names the ones it needs. An anchor without a candidate has -inf.
    Where negatives tie, the one with the lowest index is taken and receives all of the gradient.
    """

    positive: Float[Tensor, "*K 1 B"]
    num_negatives: Int[Tensor, " B"]
    values: Mapping[Statistic, Float[Tensor, "*K 2 B"]]

    @property
    def hardest(self) -> Float[Tensor, "*K 2 B"]:
        """Score of the hardest negative: the maximum over the negatives."""
        return self.values["hardest"]

    @property
    def hardest_below(self) -> Float[Tensor, "*K 2 B"]:
        """The maximum over the negatives that score strictly below the positive."""
        return self.values["hardest_below"]

    @property
    def hardest_up_to(self) -> Float[Tensor, "*K 2 B"]:
        """The maximum over the negatives that do not score above the positive."""
        return self.values["hardest_up_to"]

    @property
    def hinge_sum(self) -> Float[Tensor, "*K 2 B"]:
        """Sum over the negatives of `[s_n - s_p + margin]+`."""
        return self.values["hinge_sum"]


# What is left of a row's negatives before the maximum is taken. The comparisons are written so that a NaN stays in
# and shows in the loss, rather than being dropped by a comparison that is always false.
CANDIDATES: Mapping[Statistic, Callable[[Tensor, Tensor], Tensor]] = {
    "hardest": lambda negatives, positive: negatives,
    "hardest_below": lambda negatives, positive: negatives.masked_fill(negatives >= positive, -torch.inf),
    "hardest_up_to": lambda negatives, positive: negatives.masked_fill(negatives > positive, -torch.inf),
}


def row_statistic(
    name: Statistic, negatives: Float[Tensor, "*K A C"], positive: Float[Tensor, "*K A"], margin: float
) -> Float[Tensor, "*K A"]:
    """One statistic of A anchors over C candidates, where `negatives` is -inf at pairs that are not negatives."""
    positive = positive.unsqueeze(-1)
    if name == "hinge_sum":
        # relu, not clamp: its gradient is 0 where the hinge is exactly 0. A pair at -inf adds nothing.
        return (negatives - positive + margin).relu().sum(dim=-1)
    return CANDIDATES[name](negatives, positive).max(dim=-1).values


def count_negatives(image_ids: Int[Tensor, " B"] | None, batch: int, device: torch.device) -> Int[Tensor, " B"]:
    """How many pairs of the batch show another image than pair i, for every i."""
    if image_ids is None:
        return torch.full((batch,), batch - 1, device=device)
    # Not by unique, whose result has a size that the host would have to wait for.
    ordered = image_ids.sort().values
    return batch - (torch.searchsorted(ordered, image_ids, right=True) - torch.searchsorted(ordered, image_ids))


def dense_statistics(
    scores: Float[Tensor, "*K B B"],
    image_ids: Int[Tensor, " B"] | None,
    margin: float,
    needs: tuple[Statistic, ...],
) -> AnchorStatistics:
    """Statistics of a score matrix that is there; plain differentiable torch."""
    batch = scores.shape[-1]
    labels = torch.arange(batch, device=scores.device) if image_ids is None else image_ids
    negatives = scores.masked_fill(labels[:, None] == labels, -torch.inf)
    positive = scores.diagonal(dim1=-2, dim2=-1)
    values = {
        name: torch.stack([row_statistic(name, rows, positive, margin) for rows in (negatives, negatives.mT)], dim=-2)
        for name in needs
    }
    return AnchorStatistics(positive.unsqueeze(-2), count_negatives(image_ids, batch, scores.device), values)
