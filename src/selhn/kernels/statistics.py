"""What every loss here is made of: a few numbers an anchor, taken over the anchor's negatives.

Image i is an anchor among the texts (row i of `scores`), text i among the images (column i). Both directions are
reduced by the same function of "rows", so a loss is written once and for both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

Statistic = Literal[
    "hardest",
    "hardest_below",
    "hardest_up_to",
    "hinge_sum",
    "log_sum_exp",
    "softplus_sum",
    "mined_count",
    "mined_sum",
    "positive_mean",
]


@dataclass(frozen=True)
class Terms:
    """The constants inside the statistics."""

    margin: float = 0.0
    temperature: float = 1.0
    bias: float = 0.0
    polynomial: tuple[float, ...] = (0.0,)
    """Coefficients of the `penalty` of a mined negative, the constant first."""
    one_way: bool = True
    """Whether that penalty counts only where it rises."""
    mask_same_image: bool = True
    """Whether other pairs of an anchor's image are left out of its candidates."""


@dataclass(frozen=True)
class AnchorStatistics:
    """Statistics of the 2B anchors of a batch; axis -2 is (image anchors, text anchors).

    Only those in `values` were computed; a loss names the ones it needs. An anchor without a candidate has -inf, and a
    sum of 0. Where negatives tie, the one with the lowest index is taken and receives all of the gradient. `given` is
    what a loss was handed beyond the scores, `raw` the statistics of the scores as they were given, if those were
    asked for: a loss may take its own of scaled scores, say.
    """

    positive: Float[Tensor, "*K 1 B"]
    num_negatives: Int[Tensor, " B"]
    values: Mapping[Statistic, Float[Tensor, "*K 2 B"]]
    given: Any = None
    raw: "AnchorStatistics | None" = None

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

    @property
    def log_sum_exp(self) -> Float[Tensor, "*K 2 B"]:
        """`log sum exp(s_n / temperature)` over the negatives."""
        return self.values["log_sum_exp"]

    @property
    def softplus_sum(self) -> Float[Tensor, "*K 2 B"]:
        """Sum over the negatives of `log(1 + exp(s_n / temperature + bias))`."""
        return self.values["softplus_sum"]

    @property
    def mined_count(self) -> Float[Tensor, "*K 2 B"]:
        """How many negatives score above `s_p - margin`; it carries no gradient."""
        return self.values["mined_count"]

    @property
    def mined_sum(self) -> Float[Tensor, "*K 2 B"]:
        """Sum over those negatives of their `penalty`."""
        return self.values["mined_sum"]

    @property
    def positive_mean(self) -> Float[Tensor, "*K 2 B"]:
        """The mean score over all pairs of the anchor's image, its own among them."""
        return self.values["positive_mean"]


# The maxima: what is left of a row's negatives before the maximum is taken. The comparisons are written so that a NaN
# stays in and shows in the loss, rather than being dropped by a comparison that is always false.
CANDIDATES: Mapping[Statistic, Callable[[Tensor, Tensor], Tensor]] = {
    "hardest": lambda negatives, positive: negatives,
    "hardest_below": lambda negatives, positive: negatives.masked_fill(negatives >= positive, -torch.inf),
    "hardest_up_to": lambda negatives, positive: negatives.masked_fill(negatives > positive, -torch.inf),
}


def is_mined(negatives: Float[Tensor, "*#K"], positive: Float[Tensor, "*#K"], margin: float) -> Bool[Tensor, "*#K"]:
    """Whether `s_n > s_p - margin`, written so that a NaN is mined and shows."""
    return ~(negatives <= positive - margin)


def polynomial(coefficients: Sequence[float], x: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
    """`sum_q c_q x^q`."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def slope(coefficients: Sequence[float]) -> tuple[float, ...]:
    """The coefficients of a polynomial's derivative."""
    return tuple(power * coefficient for power, coefficient in enumerate(coefficients))[1:]


def penalty(coefficients: Sequence[float], x: Float[Tensor, "*K"], direction: int) -> Float[Tensor, "*K"]:
    """`[G(x)]+` of a polynomial G; for `direction` 1 it is 0 where G falls, for -1 where G rises."""
    against = direction * polynomial(slope(coefficients), x.detach()) < 0
    return polynomial(coefficients, x).relu().masked_fill(against, 0.0)


def row_statistic(
    name: Statistic, negatives: Float[Tensor, "*K A C"], positive: Float[Tensor, "*K A"], terms: Terms
) -> Float[Tensor, "*K A"]:
    """One statistic of A anchors over C candidates, where `negatives` is -inf at pairs that are not negatives."""
    if name == "hinge_sum":
        # relu, not clamp: its gradient is 0 where the hinge is exactly 0. A pair at -inf adds nothing.
        return (negatives - positive.unsqueeze(-1) + terms.margin).relu().sum(dim=-1)
    if name == "log_sum_exp":
        return (negatives / terms.temperature).logsumexp(dim=-1)
    if name == "softplus_sum":
        # Not softplus: torch's turns into the identity above 20.
        return -logsigmoid(-(negatives / terms.temperature + terms.bias)).sum(dim=-1)
    if name in ("mined_count", "mined_sum"):
        mined = is_mined(negatives, positive.unsqueeze(-1), terms.margin)
        if name == "mined_count":
            return mined.sum(dim=-1, dtype=negatives.dtype)
        # -inf is replaced before the polynomial: its powers would be NaN in the gradient.
        of_each = penalty(terms.polynomial, negatives.masked_fill(~mined, 0.0), int(terms.one_way))
        return of_each.masked_fill(~mined, 0.0).sum(dim=-1)
    return CANDIDATES[name](negatives, positive.unsqueeze(-1)).max(dim=-1).values


def merge_sums(name: Statistic, first: Tensor, second: Tensor) -> Tensor:
    """A statistic over all candidates, not a maximum, from the statistics of two parts of them."""
    return torch.logaddexp(first, second) if name == "log_sum_exp" else first + second


def pull(name: Statistic, negatives: Float[Tensor, "A C"], level: Float[Tensor, " A"], terms: Terms) -> Tensor:
    """The derivative of a statistic, not a maximum, by every score of a tile, in units of `steepness`: from 0 to 1.

    `level` is what must be known of an anchor besides its scores, as `pull_level` gives it. Of "mined_sum" the bounds
    hold for cosines, and a polynomial that may also fall pulls the other way there.
    """
    if name == "hinge_sum":
        return (negatives - level[:, None] + terms.margin > 0).to(negatives.dtype)
    if name == "log_sum_exp":
        return (negatives / terms.temperature - level[:, None]).exp()
    if name == "mined_sum":
        mined = is_mined(negatives, level[:, None], terms.margin)
        scores = negatives.masked_fill(~mined, 0.0)
        pulled = mined & (penalty(terms.polynomial, scores, int(terms.one_way)) != 0)
        return (polynomial(slope(terms.polynomial), scores) / steepness(name, terms)).masked_fill(~pulled, 0.0)
    return (negatives / terms.temperature + terms.bias).sigmoid()


def pull_level(name: Statistic, positive: Float[Tensor, " B"], value: Float[Tensor, "2 B"]) -> Float[Tensor, "2 B"]:
    """The positive, or the value of the statistic itself where it is a log-sum-exp."""
    if name == "log_sum_exp":
        # An anchor without negatives pulls at nothing: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
        return value.masked_fill(value == -torch.inf, torch.inf)
    return positive.expand(2, -1)


def steepness(name: Statistic, terms: Terms) -> float:
    """The largest derivative of a statistic, not a maximum, by a score."""
    if name == "mined_sum":
        return sum(map(abs, slope(terms.polynomial))) or 1.0
    return 1.0 if name == "hinge_sum" else 1 / terms.temperature


def label_images(
    image_ids: Int[Tensor, " B"] | None, batch: int, device: torch.device
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """A number below B for every pair, the same for the pairs of one image; and how many pairs show another image."""
    if image_ids is None:
        return torch.arange(batch, dtype=torch.int32, device=device), torch.full((batch,), batch - 1, device=device)
    # Where its id stands among the sorted ids: unlike `unique`, this never waits for the device.
    in_order = image_ids.sort().values
    labels = torch.searchsorted(in_order, image_ids, out_int32=True)
    return labels, batch - torch.searchsorted(in_order, image_ids, right=True) + labels


def dense_statistics(
    scores: Float[Tensor, "*K B B"],
    image_ids: Int[Tensor, " B"] | None,
    needs: tuple[Statistic, ...],
    terms: Terms,
) -> AnchorStatistics:
    """Statistics of a score matrix that is there; plain differentiable torch."""
    labels, num_negatives = label_images(image_ids, scores.shape[-1], scores.device)
    same_image = labels[:, None] == labels
    masked = same_image if terms.mask_same_image else torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    negatives = scores.masked_fill(masked, -torch.inf)
    positive = scores.diagonal(dim1=-2, dim2=-1)
    values: dict[Statistic, Tensor] = {
        name: torch.stack([row_statistic(name, rows, positive, terms) for rows in (negatives, negatives.mT)], dim=-2)
        for name in needs
        if name != "positive_mean"
    }
    if "positive_mean" in needs:
        positives = scores.masked_fill(~same_image, 0.0)
        sums = torch.stack([positives.sum(dim=-1), positives.sum(dim=-2)], dim=-2)
        values["positive_mean"] = sums / same_image.sum(dim=-1)
    return AnchorStatistics(positive.unsqueeze(-2), num_negatives, values)
