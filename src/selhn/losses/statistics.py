"""The basis of every loss: a few numbers per anchor, each a reduction of one term per negative.

Image i is an anchor among the texts (row i of `scores`), text i among the images (column i). A statistic says
what is computed from one such row; `rows.py` computes it, for both directions, and takes its derivative from
autograd. So a loss is written once and for all forms: a matrix of scores, embeddings, several processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

PerAnchor: TypeAlias = Float[Tensor, "*K 2 B"]
"""One number per anchor of a batch: image anchors, then text anchors."""
Constants: TypeAlias = tuple[float, ...]
"""What a loss hands to the term of a statistic, such as its margin."""
Asked: TypeAlias = dict[str, Constants]
"""Names in `STATISTICS` with their constants."""
Values: TypeAlias = dict[str, Tensor]
"""Statistics of the anchors of one or of both sides, (S, R), by name."""
Labels: TypeAlias = tuple[Int[Tensor, " R"] | None, Int[Tensor, " C"] | None]
"""The images of the rows and of the columns; None if no pair shows the image of another."""
Needs: TypeAlias = tuple[str, ...] | Mapping[str, Constants]
"""Names in `STATISTICS`, with the constants of those that take any."""


@dataclass(frozen=True)
class AnchorStatistics:
    """Statistics of the 2B anchors of a batch: `anchors["hardest"]`.

    Axis -2 is (image anchors, text anchors). Only those in `values` were computed; a loss names the ones it
    needs. An anchor without a candidate has -inf, and a sum of 0. If negatives tie, the one with the lowest
    index is taken and receives all of the gradient. `given` is what a loss was handed beyond the scores;
    `raw` has the statistics of the unchanged scores, if they were asked for.
    """

    positive: Float[Tensor, "*K 1 B"]
    num_negatives: Int[Tensor, " B"]
    values: Mapping[str, PerAnchor]
    given: Any = None
    raw: "AnchorStatistics | None" = None

    def __getitem__(self, name: str) -> PerAnchor:
        return self.values[name]


@dataclass(frozen=True)
class Statistic:
    """One number per anchor: a reduction of one term per negative. Its derivative comes from autograd.

    Args:
        reduction: how the terms of an anchor become one number: "max", "sum", "logsumexp", or a function of
            terms (*K, A, C) that gives (*K, A). Named ones serve images and texts in one pass.
        term: of every negative by itself, from its score, the score of the positive, and the constants that
            the loss names; a negative at -inf must add nothing. None is the score itself.
        alone: whether the term does not depend on the positive, and is called without it.
        slope: the derivative of the term by the score, with the same arguments: an optional speed-up. Only of a
            term that is `alone`, or a function of `negative - positive`, and not of a maximum. Tests compare it
            with autograd.
    """

    reduction: Literal["max", "sum", "logsumexp"] | Callable[[Tensor], Tensor]
    term: Callable[..., Tensor] | None = None
    alone: bool = False
    slope: Callable[..., Tensor | float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", self.alone or self.term is None)

    def terms(self, negatives: Tensor, positive: Tensor, constants: Constants) -> Tensor:
        """The terms of some negatives; `positive` has one number for each of their anchors."""
        if self.term is None:
            return negatives
        if self.alone:
            return self.term(negatives, *constants)
        return self.term(negatives, positive, *constants)

    def reduce(self, terms: Float[Tensor, "*K R C"], dim: int = -1) -> Float[Tensor, "*K A"]:
        """One number per anchor from the terms of all of its negatives, which are along an axis."""
        if self.reduction == "max":
            return terms.max(dim=dim).values  # not amax, which shares the gradient among equal ones
        if self.reduction == "sum":
            return terms.sum(dim=dim)
        if self.reduction == "logsumexp":
            return terms.logsumexp(dim=dim)
        return self.reduction(terms if dim == -1 else terms.mT)

    def of_rows(
        self, negatives: Float[Tensor, "*K A C"], positive: Float[Tensor, "*K A"], constants: Constants = ()
    ) -> Float[Tensor, "*K A"]:
        """The definition: A anchors over C candidates; `negatives` is -inf at pairs that are not negatives."""
        return self.reduce(self.terms(negatives, positive.unsqueeze(-1), constants))


# n: scores of the negatives, p: of the positive. Comparisons are written so that a NaN stays in and shows in
# the loss, rather than being dropped by a comparison that is always false. A statistic of one loss is beside it.
STATISTICS: dict[str, Statistic] = {
    # The score of the hardest negative: of all, of those strictly below the positive, or not above it.
    "hardest": Statistic("max"),
    "hardest_below": Statistic("max", lambda n, p: n.masked_fill(n >= p, -torch.inf)),
    "hardest_up_to": Statistic("max", lambda n, p: n.masked_fill(n > p, -torch.inf)),
    # sum [s_n - s_p + margin]+. relu, not clamp: its gradient is 0 where the hinge is exactly 0.
    "hinge_sum": Statistic(
        "sum",
        lambda n, p, margin: (n - (p - margin)).relu_(),
        slope=lambda n, p, margin: (n - (p - margin)).sign_().relu_(),  # a comparison would take longer
    ),
    # log sum exp(s_n / temperature)
    "log_sum_exp": Statistic(
        "logsumexp",
        lambda n, temperature: n / temperature,
        alone=True,
        slope=lambda n, temperature: 1 / temperature,
    ),
    # sum log(1 + exp(s_n / temperature + bias)), which is the identity from 40 on.
    "softplus_sum": Statistic(
        "sum",
        lambda n, temperature, bias: softplus(n / temperature + bias, threshold=40.0),
        alone=True,
        slope=lambda n, temperature, bias: (n / temperature + bias).sigmoid_().div_(temperature),
    ),
}
"""All statistics over negatives; a package of its own adds a row. One more is over positives: "positive_mean",
the mean score over all pairs of the anchor's image, its own included."""


def with_constants(needs: Needs) -> Asked:
    """What a loss needs, each with its constants."""
    return dict(needs) if isinstance(needs, Mapping) else dict.fromkeys(needs, ())


def only_maxima(needs: Needs) -> bool:
    """Whether an anchor has gradients for its positive and for one negative of each statistic alone."""
    return all(name != "positive_mean" and STATISTICS[name].reduction == "max" for name in needs)


def label_images(
    image_ids: Int[Tensor, " B"] | None, batch: int, device: torch.device
) -> tuple[Int[Tensor, " B"] | None, Int[Tensor, " B"]]:
    """A number below B per pair, equal for pairs of one image, if any are; how many pairs show another image."""
    if image_ids is None:
        return None, torch.full((batch,), batch - 1, device=device)
    # Where its id stands among the sorted ids: unlike `unique`, this never waits for the device.
    image_ids = image_ids.contiguous()
    in_order = image_ids.sort().values
    labels = torch.searchsorted(in_order, image_ids, out_int32=True)
    return labels, batch - torch.searchsorted(in_order, image_ids, right=True) + labels


def plain_statistics(
    scores: Float[Tensor, "*K R C"],
    asked: Asked,
    labels: Labels = (None, None),
    first: int = 0,
    *,
    both: bool = True,
) -> tuple[Float[Tensor, "*K R"], Values]:
    """The definition in plain differentiable torch: the positives and everything that is asked.

    The positive of row i is in column `first` + i. Terms that rows and columns share are computed once.
    """
    of_rows, of_columns = labels
    if of_rows is None or of_columns is None:
        same = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        same.diagonal(first).fill_(True)
    else:
        same = of_rows[:, None] == of_columns
    negatives = scores.masked_fill(same, -torch.inf)
    positive = scores.diagonal(first, dim1=-2, dim2=-1)
    found = {}
    for name, constants in asked.items():
        statistic = STATISTICS[name]
        terms = statistic.terms(negatives, positive.unsqueeze(-1), constants)
        values = [statistic.reduce(terms)]
        if both:
            if not statistic.alone:
                terms = statistic.terms(negatives, positive.unsqueeze(-2), constants)
            values.append(statistic.reduce(terms, -2))
        found[name] = torch.stack(values, dim=-2)
    return positive, found
