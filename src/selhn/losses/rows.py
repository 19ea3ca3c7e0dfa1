"""Statistics of all anchors in blocks of rows of scores: an anchor needs its own row and nothing else.

The scores are a matrix or products of embeddings. Of products one block exists at a time, so that B x B scores
need O(B d) memory. Columns are anchors too: what can be merged from parts is computed in the same pass.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.losses.score_blocks import Blocks, Chosen
from selhn.losses.statistics import STATISTICS, Asked, Labels, Statistic

BLOCK, BLOCK_ON_GPU = 2**18, 2**26
"""Scores in a block; a CPU should hold it in its cache."""
ROWS = 256
"""But a block has so many rows at least, for the sake of the products."""
SMALLEST = 1e-12
"""Exponentials of which a sum is at least this share of all are precise enough."""

Reduced: TypeAlias = tuple[Tensor, ...]
"""A statistic of some anchors; of a maximum also where it is, and the score there."""


class Plan(NamedTuple):
    """What is computed of rows of scores; row i is of a pair whose other half is column `first` + i."""

    asked: Asked
    both: bool
    """Whether columns are anchors too. A reduction that is a function needs whole rows, and so a pass for each."""
    first: int = 0
    dtype: torch.dtype | None = None
    """As what embeddings are multiplied; None is as they are."""


class Found(NamedTuple):
    """Statistics of the anchors of one side or of both."""

    positive: Float[Tensor, " R"]
    values: list[Float[Tensor, "S R"]]
    """One for each name in `Plan.asked`."""
    winners: list[Int[Tensor, "S R"]]
    """Where a maximum is: one for each maximum among the names, in their order."""
    scores: list[Float[Tensor, "S R"]]
    """The scores of the winners."""

    @property
    def flat(self) -> list[Tensor]:
        return [self.positive, *self.values, *self.winners, *self.scores]

    @classmethod
    def of(cls, plan: Plan, flat: Sequence[Tensor]) -> "Found":
        values = 1 + len(plan.asked)
        maxima = (len(flat) - values) // 2
        winners, scores = flat[values : values + maxima], flat[values + maxima :]
        return cls(flat[0], list(flat[1:values]), list(winners), list(scores))


def compute(plan: Plan, blocks: Blocks, labels: Labels) -> Found:
    """The positive scores and all statistics."""
    positive = blocks.diagonal(plan.first)
    rows: list[list[Reduced]] = [[] for _ in plan.asked]
    columns: list[list[Reduced]] = [[] for _ in plan.asked]
    for part in parts(blocks.shape[0], blocks.shape[1], blocks.device):
        scores = negatives_of(blocks, part, plan.first, labels)
        for at, (name, constants) in enumerate(plan.asked.items()):
            statistic = STATISTICS[name]
            terms = statistic.terms(scores, positive[part, None], constants)
            if not plan.both:
                rows[at].append(_reduced(statistic, scores, terms, -1))
                continue
            if statistic.alone and statistic.reduction == "logsumexp":
                of_rows, of_columns = _log_sums(terms)
            else:
                of_rows = _reduced(statistic, scores, terms, -1)
                terms = terms if statistic.alone else statistic.terms(scores, positive[None], constants)
                of_columns = _reduced(statistic, scores, terms, -2, part.start)
            rows[at].append(of_rows)
            columns[at] = [_merged(statistic, [*columns[at], of_columns])]
    found = [
        tuple(torch.stack(sides) for sides in zip(map(torch.cat, zip(*of_rows)), *of_columns))
        for of_rows, of_columns in zip(rows, columns)
    ]
    maxima = [one for one in found if len(one) > 1]
    return Found(positive, [one[0] for one in found], [one[1] for one in maxima], [one[2] for one in maxima])


def parts(height: int, width: int, device: torch.device) -> Iterator[slice]:
    """The rows of one block after the other."""
    step = max(ROWS, (BLOCK if device.type == "cpu" else BLOCK_ON_GPU) // width)
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


def negatives_of(blocks: Blocks, part: Chosen, first: int, labels: Labels) -> Float[Tensor, "r C"]:
    """Rows of scores, -inf at pairs that are not negatives."""
    scores = blocks.rows(part)
    of_rows, of_columns = labels
    if of_rows is not None and of_columns is not None:
        return scores.masked_fill_(of_rows[part, None] == of_columns, -torch.inf)
    if isinstance(part, slice):
        scores.diagonal(first + part.start).fill_(-torch.inf)
        return scores
    return scores.scatter_(1, first + part[:, None], -torch.inf)


def _reduced(statistic: Statistic, scores: Tensor, terms: Tensor, dim: int, start: int = 0) -> Reduced:
    """The value along one axis of a block, which starts there; of a maximum also where it is, and the score."""
    if statistic.reduction != "max":
        return (statistic.reduce(terms, dim),)
    if terms.is_cuda:
        value, winner = terms.max(dim)
    else:  # NumPy finds the first of equal ones in a tenth of the time
        lines = terms if dim == -1 else terms.mT.contiguous()
        winner = torch.from_numpy(lines.numpy().argmax(1))
        value = lines.gather(1, winner[:, None])[:, 0]
    there = value if statistic.term is None else scores.gather(dim, winner.unsqueeze(dim)).squeeze(dim)
    return value, winner + start, there


def _log_sums(terms: Float[Tensor, "r C"]) -> tuple[Reduced, Reduced]:
    """The log-sum-exp of rows and of columns, where possible from the same exponentials."""
    if not terms.is_cuda:
        shares, whole = softmax_of_all(terms)
        sums = shares.sum(1), shares.sum(0)
        if min(float(sums[0].min()), float(sums[1].min())) > SMALLEST:
            return (sums[0].log_().add_(whole),), (sums[1].log_().add_(whole),)
    return (terms.logsumexp(1),), (terms.logsumexp(0),)


def softmax_of_all(terms: Float[Tensor, "r C"]) -> tuple[Float[Tensor, "r C"], Float[Tensor, ""]]:
    """The exponentials of terms as shares of their sum, and its logarithm; on a CPU faster than `exp`."""
    shares = terms.flatten().softmax(0).view_as(terms)
    return shares, terms.max() - shares.max().log()


def _merged(statistic: Statistic, over_parts: list[Reduced]) -> Reduced:
    """The statistics over all negatives from those over parts of them; of equal maxima the first."""
    if len(over_parts) == 1:
        return over_parts[0]
    values, *of_winners = map(torch.stack, zip(*over_parts))
    if not of_winners:
        return (statistic.reduce(values, 0),)
    value, at = values.max(0)
    return value, *(one.gather(0, at[None])[0] for one in of_winners)
