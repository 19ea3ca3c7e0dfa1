"""The same statistics straight from two embedding matrices, without the B x B scores: O(B d + tile^2) memory.

One traversal of tiles of V @ T' serves both directions. The backward pass costs O(B d) for the maxima, whose winners
were remembered, and recomputes tiles only where an anchor's `hinge_sum` received a gradient: a loss that mines all
of its anchors touches none.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.kernels.statistics import CANDIDATES, AnchorStatistics, Statistic, count_negatives, row_statistic

HALF = (torch.float16, torch.bfloat16)


def tiled_statistics(
    image_emb: Float[Tensor, "B d"],
    text_emb: Float[Tensor, "B d"],
    image_ids: Int[Tensor, " B"] | None,
    margin: float,
    needs: tuple[Statistic, ...],
    tile: int | None = None,
) -> AnchorStatistics:
    """Statistics of `image_emb @ text_emb.T`: values, gradients and tie rule of `dense_statistics`.

    Half-precision embeddings are multiplied exactly and compared in float32. `index_add_` on CUDA adds in any order;
    `torch.use_deterministic_algorithms(True)` makes the gradients repeatable.
    """
    tile = tile or (8192 if image_emb.is_cuda else 1024)
    positive, *values = _TiledStatistics.apply(image_emb, text_emb, image_ids, margin, needs, tile)
    counts = count_negatives(image_ids, len(image_emb), image_emb.device)
    return AnchorStatistics(positive.unsqueeze(0), counts, dict(zip(needs, values)))


class _TiledStatistics(torch.autograd.Function):
    """(V, T) -> positive (B), then every statistic of `needs` (2, B)."""

    @staticmethod
    def forward(
        ctx: Any,
        image_emb: Tensor,
        text_emb: Tensor,
        image_ids: Tensor | None,
        margin: float,
        needs: tuple[Statistic, ...],
        tile: int,
    ) -> tuple[Tensor, ...]:
        with torch.autocast(image_emb.device.type, enabled=False):
            positive, values, winners = _traverse(image_emb, text_emb, image_ids, margin, needs, tile)
        ctx.save_for_backward(image_emb, text_emb, image_ids, positive, *winners.values())
        ctx.winner_names, ctx.margin, ctx.needs, ctx.tile = tuple(winners), margin, needs, tile
        ctx.set_materialize_grads(False)
        return positive, *(values[name] for name in needs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_positive: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        image_emb, text_emb, image_ids, positive, *winners = ctx.saved_tensors
        winner_of = dict(zip(ctx.winner_names, winners))
        images, texts = _Side(image_emb, positive.dtype), _Side(text_emb, positive.dtype)
        grad_positive = torch.zeros_like(positive) if grad_positive is None else grad_positive.clone()
        with torch.autocast(image_emb.device.type, enabled=False):
            for name, grad in zip(ctx.needs, grads):
                if grad is None:
                    continue
                if name == "hinge_sum":
                    grad_positive -= _hinge_backward(images, texts, image_ids, positive, grad, ctx.margin, ctx.tile)
                    continue
                # The winner of an image anchor is a text, that of a text anchor an image.
                for anchors, candidates, weight, winner in zip((images, texts), (texts, images), grad, winner_of[name]):
                    weight = torch.where(winner < 0, 0, weight)[:, None]
                    winner = winner.clamp(min=0)
                    anchors.grad += weight * candidates.emb[winner]
                    candidates.grad.index_add_(0, winner, weight * anchors.emb)
            images.grad += grad_positive[:, None] * text_emb
            texts.grad += grad_positive[:, None] * image_emb
        return images.grad.to(image_emb.dtype), texts.grad.to(text_emb.dtype), None, None, None, None


class _Side:
    """The embeddings of one modality and the gradient that gathers for them, the latter in the accumulating dtype."""

    def __init__(self, emb: Float[Tensor, "B d"], dtype: torch.dtype):
        self.emb = emb
        self.grad = torch.zeros_like(emb, dtype=dtype)


def _product(left: Float[Tensor, "A d"], right: Float[Tensor, "d C"]) -> Float[Tensor, "A C"]:
    """A matrix product that is never rounded to half precision: epsilon = 0.01 is under three steps of bfloat16."""
    if right.dtype not in HALF:
        return left @ right
    if right.is_cuda:
        return torch.mm(left.to(right.dtype), right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _spans(length: int, tile: int) -> Iterator[slice]:
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))


def _traverse(
    image_emb: Float[Tensor, "B d"],
    text_emb: Float[Tensor, "B d"],
    image_ids: Int[Tensor, " B"] | None,
    margin: float,
    needs: tuple[Statistic, ...],
    tile: int,
) -> tuple[Tensor, dict[Statistic, Tensor], dict[Statistic, Tensor]]:
    """Positive scores, statistics (2, B), and the index (2, B) of the winner of every maximum, -1 for none."""
    batch = len(image_emb)
    # The positives come from the same products as the negatives, so that equal pairs stay exactly equal.
    positive = torch.cat([_product(image_emb[s], text_emb[s].mT).diagonal().clone() for s in _spans(batch, tile)])
    values = {name: positive.new_full((2, batch), 0.0 if name == "hinge_sum" else -torch.inf) for name in needs}
    winners: dict[Statistic, Tensor] = {
        name: torch.full((2, batch), -1, device=positive.device) for name in needs if name != "hinge_sum"
    }
    for rows in _spans(batch, tile):
        for columns in _spans(batch, tile):
            negatives = _product(image_emb[rows], text_emb[columns].mT)
            if image_ids is not None:
                negatives.masked_fill_(image_ids[rows, None] == image_ids[columns], -torch.inf)
            elif rows == columns:
                negatives.fill_diagonal_(-torch.inf)
            for direction, (block, anchors, first) in enumerate(
                [(negatives, rows, columns.start), (negatives.mT, columns, rows.start)]
            ):
                for name in needs:
                    if name == "hinge_sum":
                        values[name][direction, anchors] += row_statistic(name, block, positive[anchors], margin)
                        continue
                    best, index = CANDIDATES[name](block, positive[anchors, None]).max(dim=-1)
                    # Strictly better, or NaN: tiles come in rising order, so the lowest index keeps a tie.
                    so_far = values[name][direction, anchors]
                    better = (best > so_far) | best.isnan()
                    values[name][direction, anchors] = torch.where(better, best, so_far)
                    winners[name][direction, anchors] = torch.where(
                        better, index + first, winners[name][direction, anchors]
                    )
    return positive, values, winners


def _hinge_backward(
    images: _Side,
    texts: _Side,
    image_ids: Int[Tensor, " B"] | None,
    positive: Float[Tensor, " B"],
    weight: Float[Tensor, "2 B"],
    margin: float,
    tile: int,
) -> Float[Tensor, " B"]:
    """Add the gradient of `hinge_sum` to both sides; return what every positive score loses by it.

    Only pairs whose image or text anchor has a weight are visited, each once: the images that average against all
    texts, then the other images against the texts that average.
    """
    batch = len(positive)
    labels = torch.arange(batch, device=positive.device) if image_ids is None else image_ids
    peak = weight.abs().max().clamp(min=torch.finfo(weight.dtype).tiny)
    weight = weight / peak  # so that weights such as 1 / B^2 survive a product in half precision
    everyone = torch.arange(batch, device=positive.device)
    averaging, others = (weight[0] != 0).nonzero()[:, 0], (weight[0] == 0).nonzero()[:, 0]
    lost = torch.zeros_like(positive)
    for all_rows, all_columns in ((averaging, everyone), (others, (weight[1] != 0).nonzero()[:, 0])):
        for row_span in _spans(len(all_rows), tile):
            rows = all_rows[row_span]
            row_emb = images.emb[rows]
            for column_span in _spans(len(all_columns), tile):
                columns = all_columns[column_span]
                column_emb = texts.emb[columns]
                scores = _product(row_emb, column_emb.mT)
                scores.masked_fill_(labels[rows, None] == labels[columns], -torch.inf)
                pull = torch.where(scores - positive[rows, None] + margin > 0, weight[0, rows, None], 0)
                lost[rows] += pull.sum(dim=1)
                text_pull = torch.where(scores - positive[columns] + margin > 0, weight[1, columns], 0)
                lost[columns] += text_pull.sum(dim=0)
                pull += text_pull
                images.grad.index_add_(0, rows, _product(pull, column_emb) * peak)
                texts.grad.index_add_(0, columns, _product(pull.mT, row_emb) * peak)
    return lost * peak
