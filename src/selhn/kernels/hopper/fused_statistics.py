"""The statistics of V @ T' and their gradients by the fused kernels: a second form of `losses/rows.py`.

The backward pass costs O(B d) for the maxima, whose winners were remembered, and computes scores again only where
an anchor's sum over all negatives received a gradient: a loss that mines all of its anchors computes none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.kernels.hopper import fused
from selhn.kernels.hopper.fused import Pair, Side
from selhn.kernels.hopper.sides import Constants
from selhn.ops.sparse_product import Base, Edges, sparse_product


def compute(plan: Any, constants: Constants, labels: Any, embs: Pair) -> tuple[Any, ...]:
    """Positive scores, statistics, the index of every maximum's winner, and the score there; as `Found` has them."""
    sides = _sides(plan, labels, embs)
    values, winners = fused.reduce(*sides, plan.asked, constants)

    def stacked(both: Pair) -> Tensor:
        return torch.stack(both[: 1 + plan.both])

    of_winners = [stacked(both).long().clamp(min=0) for both in winners.values()]
    scores = [stacked(values[name]) for name in winners]
    return sides[0].level, [stacked(values[name]) for name in plan.asked], of_winners, scores


def differentiate(
    plan: Any,
    constants: Constants,
    labels: Any,
    embs: Pair,
    positive: Float[Tensor, " R"],
    of_positive: Float[Tensor, " R"],
    winners: Sequence[Edges],
    sums: Sequence[Any],
) -> tuple[Float[Tensor, "R d"], Float[Tensor, "C d"]]:
    """The gradients of the embeddings, from those by the positives, by the winners of maxima, and by all `sums`."""
    sides, given = _sides(plan, labels, embs, positive), embs[0].dtype
    bases: tuple[Base, Base] | tuple[None, None] = (None, None)
    if sums:
        bases, lost = _sum_gradients(plan, sums, *sides, constants)
        of_positive -= lost
    edges = Edges.of_pairs(of_positive, plan.first).joined(winners)
    of_images = sparse_product(edges, sides[1].emb, len(sides[0]), bases[0], given)
    of_texts = sparse_product(edges.mT, sides[0].emb, len(sides[1]), bases[1], given)
    width = embs[0].shape[1]
    return of_images[:, :width], of_texts[:, :width]


def _sides(
    plan: Any, labels: Any, embs: Pair, positive: Float[Tensor, " R"] | None = None
) -> tuple[Side, Side]:
    """Both sides with their positive scores; see below for columns that are no anchors."""
    image_emb, text_emb = (fused.aligned(emb.to(plan.dtype or emb.dtype)) for emb in embs)
    own = slice(plan.first, plan.first + len(image_emb))
    if positive is None:
        positive = fused.positives(image_emb, text_emb[own])
    rows, columns = labels
    if rows is None:
        columns = torch.arange(len(text_emb), dtype=torch.int32, device=text_emb.device)
        rows = columns[own]
    # A column that is no anchor has a level beyond all scores, like an anchor without negatives.
    of_columns = positive if plan.both else positive.new_full((len(text_emb),), torch.inf)
    return Side(image_emb, rows, positive), Side(text_emb, columns, of_columns)


def _sum_gradients(
    plan: Any, sums: Sequence[Any], images: Side, texts: Side, constants: Constants
) -> tuple[tuple[Base, Base], Float[Tensor, " R"]]:
    """The gradients of sums over all negatives for both sides, and what the positive scores lose."""
    wide = images.level.dtype
    # In one unit in which the largest is 1024: half precision holds it, and what is far below it. A statistic's
    # largest derivative by a score is 1, or the scale.
    steepness = [1.0 if one.name == "hinge_sum" else constants.scale for one in sums]
    pulled = [one.grad * steep for one, steep in zip(sums, steepness)]
    largest = torch.stack([grad.abs().max() for grad in pulled]).max()
    unit = largest.clamp(min=torch.finfo(wide).tiny) / 1024
    totals = torch.zeros_like(images.emb, dtype=wide), torch.zeros_like(texts.emb, dtype=wide)
    lost = images.level.new_zeros(len(images)), images.level.new_zeros(len(texts))
    of_positive = torch.zeros_like(images.level)
    for one, grad in zip(sums, pulled):
        weights = grad[0] / unit, grad[1] / unit if plan.both else torch.zeros_like(texts.level)
        sides = [images, texts]
        if one.name == "log_sum_exp":
            # Without negatives there is no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
            levels = one.value.masked_fill(one.value == -torch.inf, torch.inf)
            sides[: len(levels)] = [replace(side, level=level) for side, level in zip(sides, levels)]
        both = _add_chosen(one.name, sides[0], sides[1], weights, totals, constants)
        for so_far, of_side in zip(lost, both):
            so_far += of_side[0]
        if (
            one.name == "hinge_sum"
        ):  # minus the sum of its derivatives by the negatives is that by the positive
            of_positive += (both[0][1] + (both[1][1] if plan.both else 0)) * unit
    # Near collapse the gradients at an anchor cancel but for the small differences of the embeddings. What
    # rounding took from all of them would outweigh these: it is given back, at the mean of the embeddings.
    means = [side.emb.mean(dim=0, dtype=wide) for side in (texts, images)]
    return (Base(totals[0], lost[0], means[0], unit), Base(totals[1], lost[1], means[1], unit)), of_positive


def _add_chosen(
    name: str, images: Side, texts: Side, weights: Pair, totals: Pair, constants: Constants
) -> Pair:
    """`add_pulls` of the anchors that have a weight, or of all.

    If few have one, the images that do meet all texts, and all images meet the texts that do: in the one
    product only the images' statistics have a gradient, in the other only the texts'. How many there are is
    all that the host waits for.
    """
    numbers = torch.stack([(weight != 0).sum() for weight in weights]).tolist()
    if numbers[0] / len(images) + numbers[1] / len(texts) >= 1:
        return fused.add_pulls(name, images, texts, weights, totals, constants)
    number_of_sums = 1 + (name == "hinge_sum")
    sums = weights[0].new_zeros(number_of_sums, len(images)), weights[1].new_zeros(number_of_sums, len(texts))
    for side, number in enumerate(numbers):
        if number:
            chosen = (weights[side] == 0).to(torch.uint8).argsort(stable=True)[:number]
            sides, pulling, parts = [images, texts], [torch.zeros_like(one) for one in weights], list(totals)
            sides[side], pulling[side] = sides[side][chosen], weights[side][chosen]
            parts[side] = torch.zeros_like(sides[side].emb, dtype=totals[side].dtype)
            weight, grads = (pulling[0], pulling[1]), (parts[0], parts[1])
            both = fused.add_pulls(name, sides[0], sides[1], weight, grads, constants)
            totals[side].index_add_(0, chosen, parts[side])
            sums[side].index_add_(1, chosen, both[side])
            sums[1 - side].add_(both[1 - side])
    return sums
