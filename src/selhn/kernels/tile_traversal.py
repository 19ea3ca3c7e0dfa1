"""The statistics of V @ T', for both directions, and their gradients.

The backward pass costs O(B d) for the maxima, whose winners were remembered, and recomputes tiles only where
an anchor's sum over all negatives received a gradient: a loss that mines all of its anchors touches none. The
tiles are those of `fused` on a GPU that has it, else of `torch_tiles`.
"""

from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.base.ranks import Shares
from selhn.kernels import torch_tiles
from selhn.kernels.sparse_product import Base, Edges, sparse_product
from selhn.kernels.statistics import MAXIMA, STATISTICS, Terms
from selhn.kernels.torch_tiles import Side, Sums, Weights, no_sums

Embeddings: TypeAlias = Float[Tensor, "B d"]
PerPair: TypeAlias = Int[Tensor, " B"]


def arithmetic_of(tile: int | None) -> ModuleType:
    """The backend: torch for tiles of a given size, Triton for tiles of its own size."""
    if tile is not None:
        return torch_tiles
    from selhn.kernels import fused

    return fused


class TiledStatistics(torch.autograd.Function):
    """(V, T) -> positive (B), then all `needs` (2, B); V and T are multiplied as `dtype`.

    Several processes take a share of the images each, and all texts. An image's statistics are then complete,
    a text's are merged from those of all processes, and so are the gradients of the texts: a process holds
    B d numbers and tiles, never B x B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        needs: tuple[str, ...],
        terms: Terms,
        tile: int | None,
        dtype: torch.dtype,
        shares: Shares | None,
        labels: Tensor,
        *embs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.needs, ctx.terms, ctx.tile, ctx.given, ctx.shares = needs, terms, tile, embs[0].dtype, shares
        image_emb, text_emb = (emb.to(dtype) for emb in embs)
        with torch.autocast(labels.device.type, enabled=False):
            text_emb = text_emb if shares is None else shares.gather(text_emb)
            positive, values, winners = _reduce((image_emb, text_emb), labels, needs, terms, tile, shares)
        remembered = [winners[name] if name in MAXIMA else values[name] for name in needs]
        ctx.save_for_backward(image_emb, text_emb, labels, positive, *remembered)
        ctx.set_materialize_grads(False)
        without = (name for name in needs if name not in MAXIMA and STATISTICS[name].derivative is None)
        ctx.mark_non_differentiable(*(values[name] for name in without))
        return positive, *(values[name] for name in needs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_positive: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        image_emb, text_emb, labels, positive, *remembered = ctx.saved_tensors
        shares, own = ctx.shares, _own(ctx.shares, len(positive))
        grad_positive = torch.zeros_like(positive) if grad_positive is None else grad_positive.clone()
        arrived = [
            (name, grad, kept) for name, grad, kept in zip(ctx.needs, grads, remembered) if grad is not None
        ]
        sums = [part for part in arrived if STATISTICS[part[0]].derivative is not None]
        bases: tuple[Base, Base] | tuple[None, None] = (None, None)
        with torch.autocast(image_emb.device.type, enabled=False):
            if sums:
                images, texts = Side(image_emb, labels[own], positive[own]), Side(text_emb, labels, positive)
                bases, of_positive = _sum_gradients(sums, images, texts, own, ctx.terms, ctx.tile, shares)
                grad_positive[own] -= of_positive
            maxima = [part for part in arrived if part[0] in MAXIMA]
            edges = _edges(grad_positive, [part[1:] for part in maxima], own)
            # All ranks have the same loss, and the gradients of the texts come from all: see `base.ranks`.
            given = ctx.given if shares is None else positive.dtype
            of_images = sparse_product(edges, text_emb, len(image_emb), bases[0], given)
            of_texts = sparse_product(edges.mT, image_emb, len(text_emb), bases[1], given)
        if shares is not None:
            of_images = (of_images * shares.ranks.number).to(ctx.given)
            of_texts = (shares.ranks.sum(of_texts)[own] * shares.ranks.number).to(ctx.given)
        return None, None, None, None, None, None, of_images, of_texts


def _own(shares: Shares | None, batch: int) -> slice:
    """The images of this process among those of the batch."""
    return slice(0, batch) if shares is None else shares.rows


def _reduce(
    embs: tuple[Float[Tensor, "b d"], Embeddings],
    labels: PerPair,
    needs: tuple[str, ...],
    terms: Terms,
    tile: int | None,
    shares: Shares | None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Positive scores, statistics (2, B), and the index (2, B) of every maximum's winner, -1 for none."""
    (image_emb, text_emb), own, arithmetic = embs, _own(shares, len(labels)), arithmetic_of(tile)
    positive = arithmetic.positives(image_emb, text_emb[own], tile)
    images = Side(image_emb, labels[own], positive)
    positive = positive if shares is None else shares.gather(positive)
    found = arithmetic.reduce(images, Side(text_emb, labels, positive), needs, terms, tile)
    values = {name: [side[name][0] for side in found] for name in needs}
    winners = {name: [side[name][1].long() for side in found] for name in needs if name in MAXIMA}
    for both in winners.values():
        both[1] += own.start * (both[1] >= 0)
    if shares is not None:
        _merge_shares(values, winners, shares)
    stacked, places = (
        {name: torch.stack(both) for name, both in found.items()} for found in (values, winners)
    )
    return positive, stacked, places


def _merge_shares(values: dict[str, list[Tensor]], winners: dict[str, list[Tensor]], shares: Shares) -> None:
    """Statistics of all images from those of each process, and of the texts from the parts of each."""
    for found in (values, winners):
        if found:
            rows = shares.gather(torch.stack([of_images for of_images, _ in found.values()], dim=1))
            for both, of_images in zip(found.values(), rows.unbind(1)):
                both[0] = of_images
    parts = {name: shares.ranks.all(of_texts) for name, (_, of_texts) in values.items()}
    for name, part in parts.items():
        if name in winners:
            values[name][1], rank = part.max(dim=0)  # of equal ones the first, which holds the lower indices
            winners[name][1] = shares.ranks.all(winners[name][1]).gather(0, rank[None])[0]
        else:
            values[name][1] = STATISTICS[name].reduce(part, dim=0)


def _edges(
    grad_positive: Float[Tensor, " B"],
    maxima: list[tuple[Float[Tensor, "2 B"], Int[Tensor, "2 B"]]],
    own: slice,
) -> Edges:
    """The images of this process, the texts that they are paired with or that win, and the gradients."""
    pairs = torch.arange(own.start, own.stop, device=grad_positive.device)
    parts = [Edges(pairs - own.start, pairs, grad_positive[own])]
    for weight, winner in maxima:
        # The winner of an image anchor is a text, that of a text anchor an image, which may be elsewhere.
        image = winner[1] - own.start
        here = (image >= 0) & (winner[1] < own.stop)
        parts += [
            Edges(
                pairs - own.start, winner[0, own].clamp(min=0), weight[0, own].where(winner[0, own] >= 0, 0)
            ),
            Edges(
                image.where(here, 0), torch.arange(len(here), device=here.device), weight[1].where(here, 0)
            ),
        ]
    return Edges(*(torch.cat(field) for field in zip(*parts)))


def _sum_gradients(
    sums: list[tuple[str, Tensor, Tensor]],
    images: Side,
    texts: Side,
    own: slice,
    terms: Terms,
    tile: int | None,
    shares: Shares | None,
) -> tuple[tuple[Base, Base], Float[Tensor, " b"]]:
    """The gradients of sums over all negatives for both sides, and for the positive scores of this process."""
    # In one unit in which the largest is 1024: half precision holds it, and what is far below it.
    pulled = torch.stack([grad * STATISTICS[name].steepness(terms) for name, grad, _ in sums])
    unit = pulled.abs().max().clamp(min=torch.finfo(pulled.dtype).tiny) / 1024
    totals = torch.zeros_like(images.emb, dtype=pulled.dtype), torch.zeros_like(texts.emb, dtype=pulled.dtype)
    lost = [pulled.new_zeros(len(side)) for side in (images, texts)]
    of_positive = torch.zeros_like(images.level)
    for (name, _, value), weight in zip(sums, pulled / unit):
        levels = STATISTICS[name].level(texts.level, value)
        sides = replace(images, level=levels[0, own]), replace(texts, level=levels[1])
        both = _add_chosen(name, *sides, (weight[0, own], weight[1]), totals, terms, tile)
        for so_far, of_side in zip(lost, both):
            so_far += of_side[0]
        if STATISTICS[name].has_positive:
            of_texts = both[1][1] if shares is None else shares.ranks.sum(both[1][1])
            of_positive += (both[0][1] + of_texts[own]) * unit
    # Near collapse the gradients at an anchor cancel but for the small differences of the embeddings. What
    # rounding took from all of them would outweigh these: it is given back, at the mean of the embeddings.
    means = [side.emb.mean(dim=0, dtype=pulled.dtype) for side in (texts, images)]
    return (Base(totals[0], lost[0], means[0], unit), Base(totals[1], lost[1], means[1], unit)), of_positive


def _add_chosen(
    name: str,
    images: Side,
    texts: Side,
    weights: Weights,
    totals: tuple[Tensor, Tensor],
    terms: Terms,
    tile: int | None,
) -> Sums:
    """`add_pulls` of the anchors that have a weight, or of all.

    If few have one, the images that do meet all texts, and all images meet the texts that do: in the one
    product only the images' statistics have a gradient, in the other only the texts'. How many there are is
    all that the host waits for.
    """
    add_pulls = arithmetic_of(tile).add_pulls
    numbers = torch.stack([(weight != 0).sum() for weight in weights]).tolist()
    if numbers[0] / len(images) + numbers[1] / len(texts) >= 1:
        return add_pulls(name, images, texts, weights, totals, terms, tile)
    sums = no_sums(name, weights)
    for side, number in enumerate(numbers):
        if number:
            chosen = (weights[side] == 0).to(torch.uint8).argsort(stable=True)[:number]
            sides, pulling, parts = (
                [images, texts],
                [torch.zeros_like(weight) for weight in weights],
                list(totals),
            )
            sides[side], pulling[side] = sides[side][chosen], weights[side][chosen]
            parts[side] = torch.zeros_like(sides[side].emb, dtype=totals[side].dtype)
            both = add_pulls(name, *sides, tuple(pulling), tuple(parts), terms, tile)
            totals[side].index_add_(0, chosen, parts[side])
            sums[side].index_add_(1, chosen, both[side])
            sums[1 - side].add_(both[1 - side])
    return sums
