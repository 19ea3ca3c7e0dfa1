"""All tiles of V @ T', one after the other, for both directions, and their gradients.

The backward pass costs O(B d) for the maxima, whose winners were remembered, and recomputes tiles only where
an anchor's sum over all negatives received a gradient: a loss that mines all of its anchors touches none. The
numbers of a tile come from `fused` on a GPU that has it, else from `torch_tiles`.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.base.ranks import Shares
from selhn.kernels import torch_tiles
from selhn.kernels.statistics import MAXIMA, STATISTICS, Terms
from selhn.kernels.torch_tiles import Side, add_product

Embeddings: TypeAlias = Float[Tensor, "B d"]
PerPair: TypeAlias = Int[Tensor, " B"]
PART = 8192
"""How many anchors' embeddings are worked on at a time outside of tiles, to need no further B x d matrix."""


def arithmetic_of(tile: int | None) -> ModuleType:
    """The backend of a tile: torch for tiles of a given size, Triton for tiles of its own size."""
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
            positive, values, winners = _traverse((image_emb, text_emb), labels, needs, terms, tile, shares)
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
        own = _own(ctx.shares, len(positive))
        embs = image_emb, text_emb
        emb_grads = (
            torch.zeros_like(image_emb, dtype=positive.dtype),
            torch.zeros_like(text_emb, dtype=positive.dtype),
        )
        grad_positive = torch.zeros_like(positive) if grad_positive is None else grad_positive.clone()
        arrived = [
            (name, grad, kept) for name, grad, kept in zip(ctx.needs, grads, remembered) if grad is not None
        ]
        sums = [part for part in arrived if STATISTICS[part[0]].derivative is not None]
        with torch.autocast(image_emb.device.type, enabled=False):
            if sums:
                # In one unit in which the largest is 1024: half precision holds it, and what is far below it.
                pulled = torch.stack([grad * STATISTICS[name].steepness(ctx.terms) for name, grad, _ in sums])
                unit = pulled.abs().max().clamp(min=torch.finfo(pulled.dtype).tiny) / 1024
                for (name, _, value), weight in zip(sums, pulled / unit):
                    levels = STATISTICS[name].level(positive, value)
                    images, texts = (
                        Side(image_emb, labels[own], levels[0, own]),
                        Side(text_emb, labels, levels[1]),
                    )
                    weights = weight[0, own], weight[1]
                    of_images, of_texts = _add_sum_gradients(
                        name, images, texts, weights, emb_grads, ctx.terms, ctx.tile
                    )
                    if STATISTICS[name].has_positive:
                        of_texts = of_texts if ctx.shares is None else ctx.shares.ranks.sum(of_texts)
                        grad_positive[own] -= (of_images + of_texts[own]) * unit
                for emb_grad in emb_grads:
                    emb_grad *= unit
            for name, grad, winners in arrived:
                if name in MAXIMA:
                    _add_winner_gradients(embs, emb_grads, grad, winners, own)
            for part in _spans(len(image_emb), PART):
                pair = slice(own.start + part.start, own.start + part.stop)
                emb_grads[0][part].addcmul_(grad_positive[pair, None], text_emb[pair])
                emb_grads[1][pair].addcmul_(grad_positive[pair, None], image_emb[part])
        if ctx.shares is not None:  # all ranks have the same loss: see `base.ranks`
            ranks = ctx.shares.ranks
            emb_grads = emb_grads[0] * ranks.number, ranks.sum(emb_grads[1])[own] * ranks.number
        return None, None, None, None, None, None, *(grad.to(ctx.given) for grad in emb_grads)


def _spans(length: int, tile: int) -> Iterator[slice]:
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))


def _own(shares: Shares | None, batch: int) -> slice:
    """The images of this process among those of the batch."""
    return slice(0, batch) if shares is None else shares.rows


def _traverse(
    embs: tuple[Float[Tensor, "b d"], Embeddings],
    labels: PerPair,
    needs: tuple[str, ...],
    terms: Terms,
    tile: int | None,
    shares: Shares | None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Positive scores, statistics (2, B), and the index (2, B) of every maximum's winner, -1 for none."""
    (image_emb, text_emb), own, arithmetic = embs, _own(shares, len(labels)), arithmetic_of(tile)
    height, width = (tile, tile) if tile else arithmetic.forward_tile(len(labels))
    own_texts = text_emb[own]
    positive = torch.cat(
        [arithmetic.positives(image_emb[s], own_texts[s]) for s in _spans(len(image_emb), height)]
    )
    images = Side(image_emb, labels[own], positive)
    positive = positive if shares is None else shares.gather(positive)
    texts = Side(text_emb, labels, positive)
    sizes = len(image_emb), len(labels)
    values = {name: [positive.new_full((size,), STATISTICS[name].empty) for size in sizes] for name in needs}
    winners = {
        name: [positive.new_full((size,), -1, dtype=torch.int64) for size in sizes]
        for name in needs
        if name in MAXIMA
    }
    for rows in _spans(sizes[0], height):
        for columns in _spans(sizes[1], width):
            reduced = arithmetic.reduce_tile(images[rows], texts[columns], needs, terms)
            for direction, (anchors, first) in enumerate(
                [(rows, columns.start), (columns, own.start + rows.start)]
            ):
                for name, (value, winner) in reduced[direction].items():
                    so_far = values[name][direction][anchors]
                    if winner is None:
                        values[name][direction][anchors] = STATISTICS[name].merge(so_far, value)
                        continue
                    # Strictly better, or NaN: tiles come in rising order, so the lowest index wins a tie.
                    better, known = (value > so_far) | value.isnan(), winners[name][direction][anchors]
                    values[name][direction][anchors] = torch.where(better, value, so_far)
                    winners[name][direction][anchors] = torch.where(better, winner + first, known)
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


def _add_winner_gradients(
    embs: Sequence[Tensor],
    emb_grads: Sequence[Tensor],
    weight: Float[Tensor, "2 B"],
    winner: Int[Tensor, "2 B"],
    own: slice,
) -> None:
    """Add the gradient of a maximum to every anchor and to its winner, if that image is here."""
    here = (winner[1] >= own.start) & (winner[1] < own.stop)
    # The winner of an image anchor is a text, that of a text anchor an image.
    for anchors, pulled, winners in (
        (0, torch.where(winner[0, own] < 0, 0, weight[0, own]), winner[0, own]),
        (1, torch.where(here, weight[1], 0), torch.where(here, winner[1] - own.start, 0)),
    ):
        for part in _spans(len(winners), PART):
            pulls, at = pulled[part, None], winners[part].clamp(min=0)
            emb_grads[anchors][part].addcmul_(pulls, embs[1 - anchors][at])
            emb_grads[1 - anchors].index_add_(0, at, pulls * embs[anchors][part])


def _add_sum_gradients(
    name: str,
    images: Side,
    texts: Side,
    weights: tuple[Float[Tensor, " b"], Float[Tensor, " B"]],
    emb_grads: tuple[Tensor, Tensor],
    terms: Terms,
    tile: int | None,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " B"]]:
    """Add the gradient of a sum over all negatives to both sides; return that of each anchor, summed.

    Only pairs whose image or text anchor has a weight are visited, each once: the images that have one
    against all texts, then the other images against the texts that have one. How many there are is all that
    the host waits for.
    """
    arithmetic = arithmetic_of(tile)
    tile = tile or arithmetic.BACKWARD_TILE
    image_sums, text_sums = (weight.new_zeros(2, len(weight)) for weight in weights)
    num_images, num_texts = torch.stack([(weight != 0).sum() for weight in weights]).tolist()
    if num_images == num_texts == 0:
        return image_sums[0], text_sums[0]
    chosen_images, chosen_texts = ((weight == 0).to(torch.uint8).argsort(stable=True) for weight in weights)
    for all_rows, all_columns in (
        (_parts(chosen_images[:num_images], len(weights[0]), tile), list(_spans(len(weights[1]), tile))),
        (
            _parts(chosen_images[num_images:], len(weights[0]), tile),
            _parts(chosen_texts[:num_texts], len(weights[1]), tile),
        ),
    ):
        for rows in all_rows:
            row_side = images[rows]
            for columns in all_columns:
                column_side = texts[columns]
                both = weights[0][rows], weights[1][columns]
                pulls, row_sums, column_sums = arithmetic.pull_tile(name, row_side, column_side, both, terms)
                add_product(emb_grads[0], rows, pulls, column_side.emb)
                add_product(emb_grads[1], columns, pulls.mT, row_side.emb)
                image_sums[:, rows] += row_sums
                text_sums[:, columns] += column_sums
    # Near collapse the gradients at an anchor cancel but for the small differences of the embeddings. What
    # rounding took from all of them would outweigh these: it is given back, at the mean of the embeddings.
    wide = image_sums.dtype
    emb_grads[0].addr_(image_sums[1], texts.emb.mean(dim=0, dtype=wide))
    emb_grads[1].addr_(text_sums[1], images.emb.mean(dim=0, dtype=wide))
    return image_sums[0], text_sums[0]


def _parts(chosen: Int[Tensor, " A"], batch: int, tile: int) -> list[slice] | list[Tensor]:
    """The chosen of a batch in parts of a tile; slices, which need no gathering, where all are chosen."""
    spans = list(_spans(len(chosen), tile))
    return spans if len(chosen) == batch else [chosen[span] for span in spans]
