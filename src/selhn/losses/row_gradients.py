"""The gradients of statistics of rows.

That of a maximum is the gradient of its one winner, which is remembered. Everything else is computed again in
blocks, of only the rows and columns whose statistics have a gradient, and autograd takes the derivative.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.losses.rows import SMALL, SMALLEST, Found, Labels, Plan, negatives_of, parts, softmax_of_all
from selhn.losses.score_blocks import Blocks, Chosen
from selhn.losses.statistics import STATISTICS, Constants, Statistic

Gradients: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""By the scores of a block, by the positives of its rows, by those of its columns."""

Derive: TypeAlias = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


class Arrived(NamedTuple):
    """A statistic that is not a maximum, and the gradients that arrived for its anchors."""

    statistic: Statistic
    constants: Constants
    value: Float[Tensor, "S R"]
    grad: Float[Tensor, "S R"]


class Side(NamedTuple):
    """The anchors along one side of a block, as a column or as a row that meets it."""

    positive: Tensor
    value: Tensor
    grad: Tensor


def differentiate(
    plan: Plan,
    blocks: Blocks,
    labels: Labels,
    found: Found,
    grads: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """The gradients of a matrix of scores or of both embeddings, from those by the positives and by all values."""
    of_positive = torch.zeros_like(found.positive) if grads[0] is None else grads[0].clone()
    sums, maxima, winners = [], [], iter(zip(found.winners, found.scores))
    for (name, constants), value, grad in zip(plan.asked, found.values, grads[1:]):
        statistic = STATISTICS[name]
        if statistic.reduction == "max":
            winner, score = next(winners)
            maxima.append((statistic, constants, winner, score, grad))
        elif grad is not None and (grad.is_cuda or grad.any()):
            sums.append(Arrived(statistic, constants, value, grad))
    _add_sums(plan, blocks, labels, found.positive, sums, of_positive)
    for statistic, constants, winner, score, grad in maxima:
        if grad is None:
            continue
        of_score, of_level = _of_winners(statistic, constants, score, found.positive, grad)
        if of_level is not None:
            of_positive += of_level
        for side in range(1 + plan.both):
            blocks.add_winners(side, winner[side], of_score[side])
    blocks.add_diagonal(plan.first, of_positive)
    return blocks.gradients()


def _of_winners(
    statistic: Statistic, constants: Constants, score: Tensor, positive: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The gradients of maxima by the scores of their winners, and by the positives."""
    if statistic.term is None:
        return grad, None
    _, derive = _derivable(lambda n, p: (statistic.terms(n, p, constants),), score, positive)
    of_score, of_level = derive((grad,))
    return of_score, of_level


def _add_sums(
    plan: Plan, blocks: Blocks, labels: Labels, positive: Tensor, sums: list[Arrived], of_positive: Tensor
) -> None:
    """Add the gradients of all statistics that are not maxima.

    All rows and columns at once; or, if few have a gradient, the rows that do, and then the columns that do.
    """
    if not sums:
        blocks.start(whole=False)
        return
    height, all_parts = blocks.shape[0], list(parts(blocks))
    if height * blocks.shape[1] <= SMALL:
        numbers, reached = [height] * (1 + plan.both), None
    else:
        reached = torch.stack([one.grad != 0 for one in sums]).any(0)
        numbers = reached.sum(1).tolist()
    if plan.both and sum(numbers) >= height:
        blocks.start(whole=True)
        for rows in all_parts:
            scores = negatives_of(blocks, rows, 0, labels)
            of_scores, of_rows, of_columns = _of_block(sums, 0, rows, scores, positive, both=True)
            blocks.put_rows(rows, of_scores)
            if of_rows is not None:
                of_positive[rows] += of_rows
            if of_columns is not None:
                of_positive += of_columns
        return
    blocks.start(whole=False)
    for side, number in enumerate(numbers):
        if side:
            blocks, labels = blocks.T, labels and labels[::-1]
        chosen = None if reached is None or number == height else reached[side].nonzero()[:, 0]
        for rows in all_parts:
            part: Chosen = rows if chosen is None else chosen[rows]
            if isinstance(part, Tensor) and not len(part):
                break
            scores = negatives_of(blocks, part, plan.first, labels)
            of_scores, of_rows, _ = _of_block(sums, side, part, scores, positive, both=False)
            blocks.add_rows(part, of_scores)
            if of_rows is not None:
                of_positive[part] += of_rows


def _of_block(
    sums: list[Arrived],
    side: int,
    part: Chosen,
    scores: Float[Tensor, "r C"],
    positive: Tensor,
    *,
    both: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of a block, from its rows alone or from the columns too."""
    totals: list[Tensor | None] = [None, None, None]
    for one in sums:
        row = Side(positive[part, None], one.value[side, part, None], one.grad[side, part, None])
        column = Side(positive[None], one.value[1:], one.grad[1:]) if both else None
        found = (_by_autograd if one.statistic.slope is None else _by_slope)(one, scores, row, column)
        for at, new in enumerate(found):
            before = totals[at]
            totals[at] = new if before is None else before if new is None else before + new
    return torch.zeros_like(scores) if totals[0] is None else totals[0], totals[1], totals[2]


def _by_autograd(one: Arrived, scores: Tensor, row: Side, column: Side | None) -> Gradients:
    statistic, constants = one.statistic, one.constants
    sides = [row] if column is None else [row, column]

    def terms_of(negatives: Tensor, *positives: Tensor) -> tuple[Tensor, ...]:
        if callable(statistic.reduction):
            return (statistic.of_rows(negatives, positives[0][:, 0], constants),)
        sides_of = positives[:1] if statistic.alone else positives
        return tuple(statistic.terms(negatives, positive, constants) for positive in sides_of)

    terms, derive = _derivable(terms_of, scores, *(side.positive for side in sides))
    if callable(statistic.reduction):
        weights = [row.grad[:, 0]]
    elif statistic.alone:
        weights = [_shared_weight(statistic, terms[0], row, column)]
    else:
        weights = [_weight(statistic, term, side) for term, side in zip(terms, sides)]
    of_scores, *of_positives = derive(tuple(weights))
    return of_scores, of_positives[0].flatten(), None if column is None else of_positives[1].flatten()


def _derivable(
    function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
) -> tuple[tuple[Tensor, ...], Derive]:
    """The values of a function, and what turns gradients by these into gradients by its inputs."""
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_() for one in inputs]
        has_autograd = torch.ones(1, requires_grad=True).neg().requires_grad
        values = function(*leaves)
    if (
        not has_autograd
    ):  # inside an operator of a compiled program, where torch.func works, which loads the compiler
        values, derive, *_ = torch.func.vjp(function, *inputs)
        return values, derive

    def derive_by_autograd(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pairs = [(value, weight) for value, weight in zip(values, weights) if value.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        outputs, arrived = zip(*pairs)
        return torch.autograd.grad(outputs, leaves, arrived, allow_unused=True, materialize_grads=True)

    return tuple(value.detach() for value in values), derive_by_autograd


def _by_slope(one: Arrived, scores: Tensor, row: Side, column: Side | None) -> Gradients:
    statistic, constants = one.statistic, one.constants
    assert statistic.slope is not None
    if statistic.alone:
        terms = (
            statistic.terms(scores, row.positive, constants) if statistic.reduction == "logsumexp" else scores
        )
        weight = _shared_weight(statistic, terms, row, column)
        return weight * statistic.slope(scores, *constants), None, None
    of_rows = statistic.slope(scores, row.positive, *constants) * row.grad
    if column is None:
        return of_rows, -of_rows.sum(1), None
    of_columns = statistic.slope(scores, column.positive, *constants) * column.grad
    return of_rows + of_columns, -of_rows.sum(1), -of_columns.sum(0)


def _weight(statistic: Statistic, terms: Tensor, side: Side) -> Tensor:
    """The gradients of the terms of anchors."""
    if statistic.reduction != "logsumexp":
        return side.grad.expand_as(terms)
    # Without negatives there is no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
    level = side.value.masked_fill(side.value == -torch.inf, torch.inf)
    return (terms - level).exp_().mul_(side.grad)


def _shared_weight(statistic: Statistic, terms: Tensor, row: Side, column: Side | None) -> Tensor:
    """The gradients of terms that rows and columns share; where possible from the same exponentials."""
    if column is None:
        return _weight(statistic, terms, row)
    if statistic.reduction == "sum":
        return row.grad + column.grad
    if not terms.is_cuda:
        shares, whole = softmax_of_all(terms)
        # Each as many times its anchor's sum; NaN where an anchor has none.
        parts_of = [(whole - side.value).exp_() for side in (row, column)]
        if max(float(part.max()) for part in parts_of) < 1 / SMALLEST:
            return shares.mul_(parts_of[0].mul_(row.grad) + parts_of[1].mul_(column.grad))
    return _weight(statistic, terms, row) + _weight(statistic, terms, column)
