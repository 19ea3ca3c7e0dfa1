"""The gradients of statistics of rows.

That of a maximum is the gradient of its one winner, which is remembered. Everything else is computed again in
blocks, of only the rows and columns whose statistics have a gradient, and autograd takes the derivative.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.losses.rows import SMALLEST, Found, Plan, negatives_of, parts, softmax_of_all
from selhn.losses.score_blocks import Blocks, Chosen
from selhn.losses.statistics import STATISTICS, Constants, Labels, Statistic
from selhn.ops.sparse_product import Edges

SMALL = 2**15
"""So few scores take no longer than waiting for the numbers of anchors that have a gradient."""
Derive: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From gradients by the terms of negatives to those by their scores and by the positives."""


class Arrived(NamedTuple):
    """A statistic that is not a maximum, and the gradients that arrived for its anchors."""

    name: str
    statistic: Statistic
    constants: Constants
    value: Float[Tensor, "S R"]
    grad: Float[Tensor, "S R"]


class Anchors(NamedTuple):
    """The anchors along one side of a block, as a column or as a row that meets it."""

    positive: Tensor
    value: Tensor
    grad: Tensor


def differentiate(
    plan: Plan,
    labels: Labels,
    blocks: Blocks,
    positive: Float[Tensor, " R"],
    of_positive: Float[Tensor, " R"],
    winners: list[Edges],
    sums: list[Arrived],
) -> tuple[Tensor, ...]:
    """The gradients of a matrix of scores or of both embeddings, from those that `of_single_scores` gives."""
    if sums:
        _add_sums(plan, labels, blocks, positive, sums, of_positive)
    else:
        blocks.start(whole=False)
    return blocks.gradients(Edges.of_pairs(of_positive, plan.first).joined(winners))


def of_single_scores(
    plan: Plan, found: Found, grads: Sequence[Tensor | None]
) -> tuple[Float[Tensor, " R"], list[Edges], list[Arrived]]:
    """The gradients by the positives and by the winners of all maxima; and the statistics that are left."""
    of_positive = torch.zeros_like(found.positive) if grads[0] is None else grads[0].clone()
    edges, sums, winners = [], [], iter(zip(found.winners, found.scores))
    rows = torch.arange(len(of_positive), device=of_positive.device)
    for (name, constants), value, grad in zip(plan.asked.items(), found.values, grads[1:]):
        statistic = STATISTICS[name]
        winner, score = next(winners) if statistic.reduction == "max" else (None, None)
        if grad is None:
            continue
        if winner is None or score is None:
            sums.append(Arrived(name, statistic, constants, value, grad))
            continue
        if statistic.term is not None:
            _, derive = _derivable(statistic, constants, score, found.positive)
            grad, of_level = derive(grad)
            of_positive += 0 if of_level is None else of_level
        for side, columns in enumerate(winner):
            there = Edges(rows, columns, grad[side].where(score[side] != -torch.inf, 0.0))
            edges.append(there.mT if side else there)
    return of_positive, edges, sums


def _add_sums(
    plan: Plan, labels: Labels, blocks: Blocks, positive: Tensor, sums: list[Arrived], of_positive: Tensor
) -> None:
    """Add the gradients of all statistics that are not maxima.

    All rows and columns at once; or, if few have a gradient, the rows that do, and then the columns that do.
    """
    height, width = blocks.shape
    reached = torch.stack([one.grad != 0 for one in sums]).any(0)
    numbers = reached.sum(1).tolist() if height * width > SMALL else [height] * (1 + plan.both)
    at_once = plan.both and sum(numbers) >= height
    blocks.start(whole=at_once)
    for side, number in enumerate(numbers[:1] if at_once else numbers):
        if side:
            blocks, labels = blocks.T, (labels[1], labels[0])
        chosen = None if at_once or number == height else reached[side].nonzero()[:, 0]
        for rows in parts(height if chosen is None else number, width, positive.device):
            part: Chosen = rows if chosen is None else chosen[rows]
            scores = negatives_of(blocks, part, plan.first, labels)
            blocks.add_rows(part, _of_block(sums, side, part, scores, positive, of_positive, both=at_once))


def _of_block(
    sums: list[Arrived],
    side: int,
    part: Chosen,
    scores: Tensor,
    positive: Tensor,
    of_positive: Tensor,
    *,
    both: bool,
) -> Float[Tensor, "r C"]:
    """The gradient by the scores of a block, of its rows alone or of the columns too; adds that by positives."""
    total: Tensor | None = None
    for one in sums:
        sides = [Anchors(positive[part, None], one.value[side, part, None], one.grad[side, part, None])]
        if both:
            sides.append(Anchors(positive[None], one.value[1:], one.grad[1:]))
        for group in [sides] if one.statistic.alone else [[side] for side in sides]:
            terms, derive = _terms(one, scores, group[0].positive)
            of_scores, of_levels = derive(_weight(one.statistic, terms, group))
            total = of_scores if total is None else total + of_scores
            if of_levels is not None and group[0] is sides[0]:
                of_positive[part] += of_levels[:, 0]
            elif of_levels is not None:
                of_positive += of_levels[0]
    assert total is not None
    return total


def _terms(one: Arrived, scores: Tensor, positive: Tensor) -> tuple[Tensor, Derive]:
    """The terms of some anchors, or their statistic if it is a function of a row; and the derivative."""
    statistic, constants, slope = one.statistic, one.constants, one.statistic.slope
    if slope is None:
        return _derivable(statistic, constants, scores, positive)
    # Of a sum the derivative is all that is needed.
    terms = statistic.terms(scores, positive, constants) if statistic.reduction == "logsumexp" else scores

    def derive(weight: Tensor) -> tuple[Tensor, Tensor | None]:
        if statistic.alone:
            return weight * slope(scores, *constants), None
        of_scores = weight * slope(scores, positive, *constants)
        return of_scores, -of_scores.sum_to_size(positive.shape)

    return terms, derive


def _derivable(
    statistic: Statistic, constants: Constants, scores: Tensor, positive: Tensor
) -> tuple[Tensor, Derive]:
    """`_terms` by autograd."""

    def compute(n: Tensor, p: Tensor) -> Tensor:
        if callable(statistic.reduction):
            return statistic.of_rows(n, p[:, 0], constants)[:, None]
        return statistic.terms(n, p, constants)

    with torch.enable_grad():
        inputs = scores.detach().requires_grad_(), positive.detach().requires_grad_()
        values = compute(*inputs)
        has_autograd = torch.ones(1, requires_grad=True).neg().requires_grad
    if not has_autograd:  # inside an operator of a compiled program: torch.func works, but loads the compiler
        found, derive, *_ = torch.func.vjp(compute, scores, positive)
        return found, derive

    def derive_by_autograd(weight: Tensor) -> tuple[Tensor, Tensor | None]:
        if not values.requires_grad:
            return torch.zeros_like(scores), None
        of_scores, of_positive = torch.autograd.grad(
            values, inputs, weight, allow_unused=True, materialize_grads=True
        )
        return of_scores, of_positive

    return values.detach(), derive_by_autograd


def _weight(statistic: Statistic, terms: Tensor, sides: Sequence[Anchors]) -> Tensor:
    """The gradients of terms, of the anchors of one side or of both."""
    if statistic.reduction != "logsumexp":
        weight = sides[0].grad if len(sides) == 1 else sides[0].grad + sides[1].grad
        return weight.expand_as(terms)
    if len(sides) == 2 and not terms.is_cuda:  # where possible from the same exponentials
        shares, whole = softmax_of_all(terms)
        # Each as many times its anchor's sum; NaN where an anchor has none.
        factors = [(whole - side.value).exp_() for side in sides]
        if max(float(factor.max()) for factor in factors) < 1 / SMALLEST:
            return shares.mul_(factors[0].mul_(sides[0].grad) + factors[1].mul_(sides[1].grad))
    weights = []
    for side in sides:
        # Without negatives there is no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
        level = side.value.masked_fill(side.value == -torch.inf, torch.inf)
        weights.append((terms - level).exp_().mul_(side.grad))
    return weights[0] if len(sides) == 1 else weights[0].add_(weights[1])
