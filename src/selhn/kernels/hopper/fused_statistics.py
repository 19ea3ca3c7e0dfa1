"""The statistics of V @ T' and their gradients by the fused kernels: a second form of `losses/rows.py`.

The backward pass costs O(B d) for the maxima, whose winners were remembered, and computes scores again only where
an anchor's sum over all negatives received a gradient: a loss that mines all of its anchors computes none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.kernels.hopper import fused
from selhn.kernels.hopper.sides import MAXIMA, REDUCTIONS, Constants, Side, Sums, Weights, constants_of
from selhn.ops.sparse_product import Base, Edges, sparse_product

Labels: TypeAlias = tuple[Int[Tensor, " R"], Int[Tensor, " C"]] | None


def compute(
    plan: Any, labels: Labels, images: Float[Tensor, "R d"], texts: Float[Tensor, "C d"]
) -> tuple[Float[Tensor, " R"], list[Float[Tensor, "S R"]], list[Int[Tensor, "S R"]]]:
    """Positive scores, statistics, and the index of every maximum's winner, -1 for none: of rows or both sides."""
    sides = _sides(plan, labels, images, texts)
    names = tuple(name for name, _ in plan.asked)
    constants = constants_of(plan.asked)
    assert constants is not None
    found = fused.reduce(*sides, names, constants)[: 1 + plan.both]
    values = [torch.stack([side[name][0] for side in found]) for name in names]
    where = [[side[name][1] for side in found] for name in names if name in MAXIMA]
    winners = [torch.stack([one.long() for one in both if one is not None]) for both in where]
    return sides[0].level, values, winners


def differentiate(
    plan: Any,
    labels: Labels,
    images: Float[Tensor, "R d"],
    texts: Float[Tensor, "C d"],
    positive: Float[Tensor, " R"],
    values: Sequence[Float[Tensor, "S R"]],
    winners: Sequence[Int[Tensor, "S R"]],
    grads: Sequence[Tensor | None],
) -> tuple[Float[Tensor, "R d"], Float[Tensor, "C d"]]:
    """The gradients of the embeddings; `grads` are those by the positives and by all values."""
    sides, given = _sides(plan, labels, images, texts, positive), images.dtype
    of_positive = torch.zeros_like(positive) if grads[0] is None else grads[0].clone()
    maxima, sums, where = [], [], iter(winners)
    for (name, _), value, grad in zip(plan.asked, values, grads[1:]):
        winner = next(where) if name in MAXIMA else None
        if grad is not None and winner is not None:
            maxima.append((grad, winner))
        elif grad is not None:
            sums.append((name, grad, value))
    bases: tuple[Base, Base] | tuple[None, None] = (None, None)
    if sums:
        constants = constants_of(plan.asked)
        assert constants is not None
        bases, lost = _sum_gradients(sums, *sides, positive, constants)
        of_positive -= lost
    edges = _edges(of_positive, plan.first, maxima)
    of_images = sparse_product(edges, sides[1].emb, len(images), bases[0], given)
    of_texts = sparse_product(edges.mT, sides[0].emb, len(texts), bases[1], given)
    width = images.shape[1]
    return of_images[:, :width], of_texts[:, :width]


def _sides(
    plan: Any,
    labels: Labels,
    images: Float[Tensor, "R d"],
    texts: Float[Tensor, "C d"],
    positive: Float[Tensor, " R"] | None = None,
) -> tuple[Side, Side]:
    """Both sides with their positive scores; see below for columns that are no anchors."""
    image_emb, text_emb = (fused.aligned(emb.to(plan.dtype or emb.dtype)) for emb in (images, texts))
    own = slice(plan.first, plan.first + len(images))
    if positive is None:
        positive = fused.positives(image_emb, text_emb[own])
    if labels is None:
        every = torch.arange(len(texts), dtype=torch.int32, device=texts.device)
        labels = every[own], every
    # A column that is no anchor has a level beyond all scores, like an anchor without negatives.
    of_columns = positive if plan.both else positive.new_full((len(texts),), torch.inf)
    return Side(image_emb, labels[0], positive), Side(text_emb, labels[1], of_columns)


def _edges(
    of_positive: Float[Tensor, " R"],
    first: int,
    maxima: list[tuple[Float[Tensor, "S R"], Int[Tensor, "S R"]]],
) -> Edges:
    """The pairs of an image and a text that are paired, or of which one is the other's winner; and gradients."""
    rows = torch.arange(len(of_positive), device=of_positive.device)
    parts = [Edges(rows, rows + first, of_positive)]
    for weight, winner in maxima:
        for side in range(len(winner)):
            there = Edges(rows, winner[side].clamp(min=0), weight[side].where(winner[side] >= 0, 0))
            parts.append(there.mT if side else there)
    return Edges(*(torch.cat(field) for field in zip(*parts)))


def _sum_gradients(
    sums: list[tuple[str, Tensor, Tensor]],
    images: Side,
    texts: Side,
    positive: Float[Tensor, " R"],
    constants: Constants,
) -> tuple[tuple[Base, Base], Float[Tensor, " R"]]:
    """The gradients of sums over all negatives for both sides, and what the positive scores lose."""
    # In one unit in which the largest is 1024: half precision holds it, and what is far below it.
    pulled = [grad * constants.steepness(name) for name, grad, _ in sums]
    tiny = torch.finfo(positive.dtype).tiny
    unit = torch.stack([grad.abs().max() for grad in pulled]).max().clamp(min=tiny) / 1024
    totals = (
        torch.zeros_like(images.emb, dtype=positive.dtype),
        torch.zeros_like(texts.emb, dtype=positive.dtype),
    )
    lost = [positive.new_zeros(len(side)) for side in (images, texts)]
    of_positive = torch.zeros_like(positive)
    for (name, _, value), grad in zip(sums, pulled):
        weight = [*(grad / unit), positive.new_zeros(len(texts))][:2]
        levels = [_level(name, positive, one) for one in value]
        sides = (
            replace(images, level=levels[0]),
            replace(texts, level=levels[1]) if len(levels) > 1 else texts,
        )
        both = _add_chosen(name, *sides, (weight[0], weight[1]), totals, constants)
        for so_far, of_side in zip(lost, both):
            so_far += of_side[0]
        if name == "hinge_sum":  # its derivative by the positive is minus the sum of those by the negatives
            of_positive += (both[0][1] + (both[1][1] if len(levels) > 1 else 0)) * unit
    # Near collapse the gradients at an anchor cancel but for the small differences of the embeddings. What
    # rounding took from all of them would outweigh these: it is given back, at the mean of the embeddings.
    means = [side.emb.mean(dim=0, dtype=positive.dtype) for side in (texts, images)]
    return (Base(totals[0], lost[0], means[0], unit), Base(totals[1], lost[1], means[1], unit)), of_positive


def _level(name: str, positive: Float[Tensor, " R"], value: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
    """What a kernel needs to know of an anchor for the derivative: its positive, or the value."""
    if REDUCTIONS[name] == "sum":
        return positive
    # Without negatives there is no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
    return value.masked_fill(value == -torch.inf, torch.inf)


def _add_chosen(
    name: str,
    images: Side,
    texts: Side,
    weights: Weights,
    totals: tuple[Tensor, Tensor],
    constants: Constants,
) -> Sums:
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
