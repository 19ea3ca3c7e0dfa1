"""The same statistics straight from two embedding matrices, without the B x B scores: O(B d + tile^2) memory.

One traversal of tiles of V @ T' serves both directions. The backward pass costs O(B d) for the maxima, whose
winners were remembered, and recomputes tiles only where an anchor's sum over all negatives received a
gradient: a loss that mines all of its anchors touches none. The numbers of a tile come from `fused` on a GPU
that has it, else from `torch_tiles`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from selhn.base.errors import SelhnError
from selhn.base.ranks import Shares
from selhn.base.types import Products
from selhn.kernels import torch_tiles
from selhn.kernels.gpu import fusable
from selhn.kernels.statistics import MAXIMA, STATISTICS, AnchorStatistics, Terms, label_images
from selhn.kernels.torch_tiles import HALF, Side, add_product

Embeddings: TypeAlias = Float[Tensor, "B d"]
PerPair: TypeAlias = Int[Tensor, " B"]
PART = 8192
"""How many anchors' embeddings are worked on at a time outside of tiles, to need no further B x d matrix."""
ALIGNED = 16
"""Fused kernels read embeddings whose width is a multiple of this."""


def tiled_statistics(
    products: Products, image_ids: PerPair | None, needs: tuple[str, ...], terms: Terms, also: tuple[str, ...] = ()
) -> AnchorStatistics:
    """Statistics of `image_emb @ text_emb.T`: values, gradients and tie rule of `dense_statistics`.

    `also` names maxima over the unchanged scores of all negatives, to be found in `raw`.

    Half-precision embeddings are multiplied exactly and compared in float32; on NVIDIA GPUs from Hopper on
    that is done by fused Triton kernels, unless a `tile` is given. Wider ones are multiplied as torch is set
    to do. On CUDA gradients repeat only under `torch.use_deterministic_algorithms(True)` (`index_add_`).
    """
    if terms.added is not None:
        raise SelhnError(
            "this loss adds a margin of its own to every score and needs the matrix: "
            "call it with image_emb @ text_emb.T"
        )
    if also:
        unchanged = terms.scale is None and terms.shift is None and terms.mask_same_image
        extra = tuple(name for name in also if name not in needs) if unchanged else ()
        anchors = tiled_statistics(products, image_ids, needs + extra, terms)
        if unchanged:
            return replace(anchors, raw=anchors)
        raw = replace(products, images=products.images.detach(), texts=products.texts.detach())
        return replace(anchors, raw=tiled_statistics(raw, image_ids, also, Terms()))
    image_emb, text_emb = _scaled(products.images, products.texts, terms)
    tile, shares, batch = products.tile, products.shares, len(products)
    of_tiles = tuple(name for name in needs if name != "positive_mean")
    if tile is None and not (can_fuse(image_emb) and all(STATISTICS[name].fused for name in of_tiles)):
        tile = 8192 if image_emb.is_cuda else 1024
    if tile is None:
        image_emb, text_emb = (_arithmetic(tile).aligned(emb) for emb in (image_emb, text_emb))
    labels, num_negatives = label_images(image_ids, batch, image_emb.device)
    masked = labels if terms.mask_same_image else label_images(None, batch, image_emb.device)[0]
    multiplied = image_emb.dtype
    if "positive_mean" in needs:
        # Near collapse its gradient and that of the tiles nearly cancel: they are added before rounding.
        wide = torch.promote_types(multiplied, torch.float32)
        image_emb, text_emb = image_emb.to(wide), text_emb.to(wide)
    if torch.compiler.is_compiling() and shares is None:
        from selhn.kernels.traced_tiles import traced_tiles

        positive, *reduced = traced_tiles(of_tiles, terms, tile, multiplied, masked, image_emb, text_emb)
    else:
        given = terms, tile, multiplied, shares, masked, image_emb, text_emb
        positive, *reduced = TiledStatistics.apply(of_tiles, *given)
    values: dict[str, Tensor] = dict(zip(of_tiles, reduced))
    if "positive_mean" in needs:
        if shares is not None:
            image_emb, text_emb = (shares.gathered(emb, same=True) for emb in (image_emb, text_emb))
        values["positive_mean"] = positive_means(image_emb, text_emb, labels, num_negatives)
    return AnchorStatistics(positive.unsqueeze(0), num_negatives, values)


def _scaled(
    image_emb: Embeddings, text_emb: Embeddings, terms: Terms
) -> tuple[Float[Tensor, "B e"], Float[Tensor, "B e"]]:
    """Embeddings whose products are `scale * scores + shift`: the shift is one more column of both."""
    if terms.scale is not None:
        image_emb = image_emb * terms.scale.to(image_emb.dtype)
    if terms.shift is not None:
        column = image_emb.new_zeros(len(image_emb), ALIGNED)
        column[:, 0] = 1
        image_emb = torch.cat([image_emb, column * terms.shift.to(image_emb.dtype)], dim=1)
        text_emb = torch.cat([text_emb, column], dim=1)
    return image_emb, text_emb


def positive_means(
    image_emb: Embeddings, text_emb: Embeddings, labels: PerPair, num_negatives: PerPair
) -> Float[Tensor, "2 B"]:
    """The mean score over all pairs of an anchor's image, from their mean embedding: O(B d), no tiles."""
    in_order, order = labels.long().sort(stable=True)
    # A label is where the pairs of its image begin in this order, and so where their bag of embeddings does.
    # Of the bags that begin there, all but the last are empty.
    last = labels + len(labels) - num_negatives - 1
    # Not index_add_: on CUDA it adds in any order.
    mean_image, mean_text = (embedding_bag(order, emb, in_order, mode="mean")[last] for emb in (image_emb, text_emb))
    return torch.stack([(image_emb * mean_text).sum(dim=1), (mean_image * text_emb).sum(dim=1)])


def can_fuse(emb: Float[Tensor, "B d"]) -> bool:
    """Whether the fused kernels serve these embeddings."""
    if not (fusable(emb) and emb.dtype in HALF and torch.version.cuda):
        return False
    # Older GPUs lack the copy engine and the shared memory that the kernels are laid out for.
    return torch.cuda.get_device_capability(emb.device) >= (9, 0)


def _arithmetic(tile: int | None) -> ModuleType:
    """Where the numbers of a tile come from: torch for tiles of a given size, Triton for tiles of its own."""
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
        emb_grads = torch.zeros_like(image_emb, dtype=positive.dtype), torch.zeros_like(text_emb, dtype=positive.dtype)
        grad_positive = torch.zeros_like(positive) if grad_positive is None else grad_positive.clone()
        arrived = [(name, grad, kept) for name, grad, kept in zip(ctx.needs, grads, remembered) if grad is not None]
        sums = [part for part in arrived if STATISTICS[part[0]].derivative is not None]
        with torch.autocast(image_emb.device.type, enabled=False):
            if sums:
                # In one unit in which the largest is 1024: half precision holds it, and what is far below it.
                pulled = torch.stack([grad * STATISTICS[name].steepness(ctx.terms) for name, grad, _ in sums])
                unit = pulled.abs().max().clamp(min=torch.finfo(pulled.dtype).tiny) / 1024
                for (name, _, value), weight in zip(sums, pulled / unit):
                    levels = STATISTICS[name].level(positive, value)
                    images, texts = Side(image_emb, labels[own], levels[0, own]), Side(text_emb, labels, levels[1])
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
    (image_emb, text_emb), own, arithmetic = embs, _own(shares, len(labels)), _arithmetic(tile)
    height, width = (tile, tile) if tile else arithmetic.forward_tile(len(labels))
    own_texts = text_emb[own]
    positive = torch.cat([arithmetic.positives(image_emb[s], own_texts[s]) for s in _spans(len(image_emb), height)])
    images = Side(image_emb, labels[own], positive)
    positive = positive if shares is None else shares.gather(positive)
    texts = Side(text_emb, labels, positive)
    sizes = len(image_emb), len(labels)
    values = {name: [positive.new_full((size,), STATISTICS[name].empty) for size in sizes] for name in needs}
    winners = {
        name: [positive.new_full((size,), -1, dtype=torch.int64) for size in sizes] for name in needs if name in MAXIMA
    }
    for rows in _spans(sizes[0], height):
        for columns in _spans(sizes[1], width):
            reduced = arithmetic.reduce_tile(images[rows], texts[columns], needs, terms)
            for direction, (anchors, first) in enumerate([(rows, columns.start), (columns, own.start + rows.start)]):
                for name, (value, winner) in reduced[direction].items():
                    so_far = values[name][direction][anchors]
                    if winner is None:
                        values[name][direction][anchors] = STATISTICS[name].merge(so_far, value)
                        continue
                    # Strictly better, or NaN: tiles come in rising order, so the lowest index keeps a tie.
                    better, known = (value > so_far) | value.isnan(), winners[name][direction][anchors]
                    values[name][direction][anchors] = torch.where(better, value, so_far)
                    winners[name][direction][anchors] = torch.where(better, winner + first, known)
    if shares is not None:
        _merge_shares(values, winners, shares)
    stacked, places = ({name: torch.stack(both) for name, both in found.items()} for found in (values, winners))
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
    """Add the gradient of a maximum to both sides: to every anchor and to its winner, if that image is here."""
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
    """Add the gradient of a sum over all negatives to both sides; return that of each anchor's own sum, summed.

    Only pairs whose image or text anchor has a weight are visited, each once: the images that have one
    against all texts, then the other images against the texts that have one. How many there are is all that
    the host waits for.
    """
    arithmetic = _arithmetic(tile)
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
