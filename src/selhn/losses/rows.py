"""Statistics of all anchors in blocks of rows of scores: an anchor needs its own row and nothing else.

The scores are a matrix or products of embeddings. Of products one block exists at a time, so that B x B scores
need O(B d) memory. Columns are anchors too: what can be merged from parts is computed in the same pass.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.losses.score_blocks import Blocks
from selhn.losses.statistics import STATISTICS, Constants, Statistic

BLOCK, BLOCK_ON_GPU = 2**18, 2**26
"""Scores in a block; a CPU should hold it in its cache."""
ROWS = 256
"""But a block has so many rows at least, for the sake of the products."""
SMALL = 2**15
"""So few numbers take no longer than a call."""
SMALLEST = 1e-12
"""Exponentials of which a sum is at least this share of all are precise enough."""

Asked: TypeAlias = tuple[tuple[str, Constants], ...]
Labels: TypeAlias = tuple[Int[Tensor, " R"], Int[Tensor, " C"]] | None
"""The images of the rows and of the columns; None if no pair shows the image of another."""

Sums: TypeAlias = tuple[Tensor, ...]
"""The values of a statistic for some anchors; of a maximum also where it is, and the score there."""


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


def compute(plan: Plan, blocks: Blocks, labels: Labels) -> Found:
    """The positive scores and all statistics."""
    positive = blocks.diagonal(plan.first)
    rows: list[list[Sums]] = [[] for _ in plan.asked]
    columns: list[list[Sums]] = [[] for _ in plan.asked]
    for part in parts(blocks):
        scores = negatives_of(blocks, part, plan.first, labels)
        for at, (name, constants) in enumerate(plan.asked):
            statistic = STATISTICS[name]
            of_rows = statistic.terms(scores, positive[part, None], constants)
            if not plan.both:
                rows[at].append(_reduced(statistic, scores, of_rows, 1))
            elif statistic.alone and statistic.reduction == "logsumexp":
                over_rows, over_columns = _log_sums(of_rows)
                rows[at].append((over_rows,))
                columns[at] = [_merged(statistic, columns[at], (over_columns,), part.start)]
            else:
                shared = of_rows if statistic.alone else statistic.terms(scores, positive[None], constants)
                rows[at].append(_reduced(statistic, scores, of_rows, 1))
                of_columns = _reduced(statistic, scores, shared, 0)
                columns[at] = [_merged(statistic, columns[at], of_columns, part.start)]
    found = [_stacked(of_rows, of_columns) for of_rows, of_columns in zip(rows, columns)]
    maxima = [one for one in found if len(one) > 1]
    return Found(positive, [one[0] for one in found], [one[1] for one in maxima], [one[2] for one in maxima])


def _stacked(rows: list[Sums], columns: list[Sums]) -> Sums:
    """What was found of all rows, and of the columns if they are anchors."""
    of_rows = rows[0] if len(rows) == 1 else tuple(torch.cat(one) for one in zip(*rows))
    return tuple(torch.stack(both) for both in zip(of_rows, *columns))


def parts(blocks: Blocks) -> Iterator[slice]:
    """The rows of one block after the other."""
    height, width = blocks.shape
    step = max(ROWS, (BLOCK if blocks.device.type == "cpu" else BLOCK_ON_GPU) // width)
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


def negatives_of(blocks: Blocks, part: slice | Tensor, first: int, labels: Labels) -> Float[Tensor, "r C"]:
    """Rows of scores, -inf at pairs that are not negatives."""
    scores = blocks.rows(part)
    if labels is not None:
        return scores.masked_fill_(labels[0][part, None] == labels[1], -torch.inf)
    if isinstance(part, slice):
        scores.diagonal(first + part.start).fill_(-torch.inf)
        return scores
    return scores.scatter_(1, first + part[:, None], -torch.inf)


def _reduced(statistic: Statistic, scores: Tensor, terms: Tensor, dim: int) -> Sums:
    """The value along one axis of a block; of a maximum also where it is, and the score there."""
    if statistic.reduction == "max":
        value, winner = _largest(terms, dim)
        there = value if statistic.term is None else scores.gather(dim, winner.unsqueeze(dim)).squeeze(dim)
        return value, winner, there
    if statistic.reduction == "sum":
        return (terms.sum(dim),)
    return (terms.logsumexp(dim),) if statistic.reduction == "logsumexp" else (statistic.reduce(terms),)


def _largest(terms: Float[Tensor, "r c"], dim: int, chunk: int = 32) -> tuple[Tensor, Tensor]:
    """The maximum and where it is, of equal ones the first.

    On a CPU `max` with an index takes ten times as long as without, so the index is sought in one chunk only.
    """
    height, width = terms.shape
    if terms.is_cuda or terms.shape[dim] < 4 * chunk or terms.numel() < SMALL:
        found = terms.max(dim)
        return found.values, found.indices
    whole = terms.shape[dim] // chunk * chunk
    chunks = terms.narrow(dim, 0, whole).unflatten(dim, (-1, chunk))
    value, place = chunks.amax(dim + 1).max(dim)
    lines = torch.arange(width if dim == 0 else height)
    inside = (chunks[place, :, lines] if dim == 0 else chunks[lines, place]).argmax(1)
    winner = place * chunk + inside
    if whole < terms.shape[dim]:
        rest = terms.narrow(dim, whole, terms.shape[dim] - whole).max(dim)
        better = _beats(rest.values, value)
        value, winner = (
            torch.where(better, rest.values, value),
            torch.where(better, rest.indices + whole, winner),
        )
    return value, winner


def _beats(value: Tensor, before: Tensor) -> Tensor:
    """Strictly better, or the first NaN: the lowest index wins a tie."""
    return (value > before) | (value.isnan() & ~before.isnan())


def _log_sums(terms: Float[Tensor, "r C"]) -> tuple[Float[Tensor, " r"], Float[Tensor, " C"]]:
    """The log-sum-exp of rows and of columns, where possible from the same exponentials."""
    if not terms.is_cuda:
        shares, whole = softmax_of_all(terms)
        sums = shares.sum(1), shares.sum(0)
        if min(float(sums[0].min()), float(sums[1].min())) > SMALLEST:
            return sums[0].log_().add_(whole), sums[1].log_().add_(whole)
    return terms.logsumexp(1), terms.logsumexp(0)


def softmax_of_all(terms: Float[Tensor, "r C"]) -> tuple[Float[Tensor, "r C"], Float[Tensor, ""]]:
    """The exponentials of terms as shares of their sum, and its logarithm; on a CPU faster than `exp`."""
    shares = terms.flatten().softmax(0).view_as(terms)
    return shares, terms.max() - shares.max().log()


def _merged(statistic: Statistic, before: list[Sums], found: Sums, start: int) -> Sums:
    """The statistics of columns over the rows so far, from those over a further block."""
    if not before:
        return found
    (so_far,) = before
    if statistic.reduction == "max":
        better = _beats(found[0], so_far[0])
        found = found[0], found[1] + start, found[2]
        return tuple(torch.where(better, new, old) for new, old in zip(found, so_far))
    merge = torch.add if statistic.reduction == "sum" else torch.logaddexp
    return (merge(so_far[0], found[0]),)
