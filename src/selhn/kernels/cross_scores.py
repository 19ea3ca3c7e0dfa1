"""The Triton kernels of `cross_scores`; imported only where they run. `triton_tiles` says what a tile is."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.kernels.pair_tiles import (
    EPSILON,
    LEAST_SQUARE,
    SLOPE,
    attend,
    half,
    pair_at,
    place,
    read_context,
    side,
    tile,
    tile_options,
)
from selhn.ops.cross_scores import LARGEST_PULL, AttentionSettings, rounded
from selhn.ops.gpu import wide_product

QUERIES = 8
"""Queries per program in the forward pass."""
QUERIES_BACK = 16
"""Queries per program in the backward pass, which sums their parts of the Gram gradient in registers."""
# Compiling takes longer than many runs: compiled once for all batch sizes, and any part of a mask.
ANY = {
    "do_not_specialize": ["num_images", "num_texts", "regions", "eights"],
    "do_not_specialize_on_alignment": ["context_mask", "query_mask"],
}


@triton.jit
def _query(mask, lengths, query, size, L: tl.constexpr):
    """Which fragments of a query are real, and their lengths."""
    fragment = tl.arange(0, L)
    inside, at = fragment < size, query * size + fragment
    return tl.load(mask + at, mask=inside, other=0) != 0, tl.load(lengths + at, mask=inside, other=0.0)


@triton.jit
def _pool(dot, square, length, real, sharpness, LSE: tl.constexpr):
    """The cosines, |x|, 1 / (|q| |x|), the score, and how the score changes with each cosine."""
    root = tl.sqrt(tl.maximum(square, LEAST_SQUARE))
    inverse = 1 / tl.maximum(length * root, EPSILON)
    cosine = dot * inverse
    number = tl.sum(real.to(tl.float32), axis=0)
    if LSE:
        logits = sharpness * cosine
        top = tl.max(tl.where(real, logits, float("-inf")), axis=0)
        power = tl.where(real, tl.exp(logits - top), 0.0)
        total = tl.sum(power, axis=0)
        score = tl.where(number > 0, (top + tl.log(total)) / sharpness, 0.0)
        share = tl.where(number > 0, power / total, 0.0)
    else:
        share = tl.where(real, 1 / tl.maximum(number, 1.0), 0.0)
        score = tl.sum(tl.where(real, share * cosine, 0.0), axis=0)
    return cosine, root, inverse, score, share


@triton.jit(**ANY)
def _score(
    dots, gram, context_mask, query_mask, lengths, scores, num_images, num_texts, regions, eights, smooth, sharpness,
    AXIS: tl.constexpr, FOCUS: tl.constexpr, LSE: tl.constexpr, ADD: tl.constexpr,
    QUERIES: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = REGIONS if AXIS == 0 else WORDS
    L: tl.constexpr = WORDS if AXIS == 0 else REGIONS
    if AXIS == 0:
        num_queries, size, query_size = num_texts, regions, eights * 8
    else:
        num_queries, size, query_size = num_images, eights * 8, regions
    context, first = place(num_queries, QUERIES)
    high, low, looked_at = read_context(gram, context_mask, context, size, K)
    at, inside = tile(num_texts, regions, eights, REGIONS, WORDS)
    for query in range(first, tl.minimum(first + QUERIES, num_queries)):
        pair, start = pair_at(context, query, num_texts, regions, eights, AXIS)
        s = tl.load(dots + start + at, mask=inside, other=0.0)
        real, length = _query(query_mask, lengths, query, query_size, L)
        _, _, _, _, _, dot, square = attend(s, high, low, looked_at, smooth, AXIS, FOCUS)
        _, _, _, score, _ = _pool(dot, square, length, real, sharpness, LSE)
        if ADD:
            score += tl.load(scores + pair)
        tl.store(scores + pair, score)


@triton.jit(**ANY)
def _score_backward(
    grad, scale, dots, gram, context_mask, query_mask, lengths, grad_dots, grad_gram, grad_lengths,
    num_images, num_texts, regions, eights, smooth, sharpness,
    AXIS: tl.constexpr, FOCUS: tl.constexpr, LSE: tl.constexpr, ADD: tl.constexpr,
    QUERIES: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """All gradients times `scale`. Pairs without any, as most are with mined negatives, are skipped."""
    K: tl.constexpr = REGIONS if AXIS == 0 else WORDS
    L: tl.constexpr = WORDS if AXIS == 0 else REGIONS
    if AXIS == 0:
        num_queries, size, query_size = num_texts, regions, eights * 8
    else:
        num_queries, size, query_size = num_images, eights * 8, regions
    context, first = place(num_queries, QUERIES)
    high, low, looked_at = read_context(gram, context_mask, context, size, K)
    at, inside = tile(num_texts, regions, eights, REGIONS, WORDS)
    factor = tl.load(scale)
    d_gram = tl.zeros([K, K], tl.float32)
    for query in range(first, tl.minimum(first + QUERIES, num_queries)):
        pair, start = pair_at(context, query, num_texts, regions, eights, AXIS)
        pull = tl.load(grad + pair) * factor
        if pull != 0:
            s = tl.load(dots + start + at, mask=inside, other=0.0)
            real, length = _query(query_mask, lengths, query, query_size, L)
            active, norm, w, w_high, gram_w, dot, square = attend(
                s, high, low, looked_at, smooth, AXIS, FOCUS
            )
            cosine, root, inverse, _, share = _pool(dot, square, length, real, sharpness, LSE)
            # A fragment that is padding, or attends to nothing, has no gradient.
            d_cosine = tl.where(length * root > EPSILON, pull * share, 0.0)
            d_dot = d_cosine * inverse
            d_length = -d_dot * cosine * root
            d_square = -0.5 * d_dot * cosine * length * length * inverse
            fragment = tl.arange(0, L)
            to = grad_lengths + (context.to(tl.int64) * num_queries + query) * query_size + fragment
            tl.store(to, d_length, mask=fragment < query_size)
            w_square = half(w * tl.expand_dims(d_square, AXIS))
            if AXIS == 0:
                d_gram = tl.dot(w_square, tl.trans(w_high), d_gram)
            else:
                d_gram = tl.dot(tl.trans(w_high), w_square, d_gram)
            # The mean of these under w is zero: the cosine is the same for w times any number.
            d_logits = w * (tl.expand_dims(d_dot, AXIS) * s + tl.expand_dims(2 * d_square, AXIS) * gram_w)
            slope = smooth / (norm + EPSILON)
            along = tl.sum(d_logits * active, axis=1 - AXIS) / ((norm + EPSILON) * tl.maximum(norm, EPSILON))
            d_s = (d_logits - active * tl.expand_dims(along, 1 - AXIS)) * tl.expand_dims(slope, 1 - AXIS)
            d_s = tl.where(s > 0, d_s, SLOPE * d_s) + w * tl.expand_dims(d_dot, AXIS)
            if ADD:
                d_s += tl.load(grad_dots + start + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(grad_dots + start + at, half(d_s), mask=inside)
    k, other = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
    tl.store(
        grad_gram + tl.program_id(0).to(tl.int64) * size * size + k * size + other,
        d_gram,
        mask=(k < size) & (other < size),
    )


class Scores(torch.autograd.Function):
    """`views`: per direction the Gram matrices (C, K, K) and masks (C, K) of the contexts, then the masks (Q, L) of
    the queries and their lengths (Q, L)."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        directions: tuple[str, ...],
        settings: AttentionSettings,
        *views: Tensor,
    ) -> Tensor:
        # A focus jumps where a weight passes the average: there float16 alone would change scores by 1e-3.
        rows, columns = rounded(images, texts, exact=settings.focus is not None)
        dots = wide_product(rows, columns.T).view(*images.shape[:2], *texts.shape[:2])
        scores = dots.new_empty(len(images), len(texts))
        for turn, direction in enumerate(directions):
            view = views[4 * turn : 4 * turn + 4]
            _score[_grid(view, QUERIES)](
                dots, *view, scores, *_arguments(dots, direction, settings, turn > 0, QUERIES),
                **tile_options(dots, stages=3, registers=96),
            )  # fmt: skip
        if any(ctx.needs_input_grad):
            width = images.shape[2]
            ctx.save_for_backward(dots, rows[:, :width], columns[:, :width], *views)
            ctx.directions, ctx.settings = directions, settings
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dots, rows, columns, *views = ctx.saved_tensors
        grad = grad.contiguous()
        scale = LARGEST_PULL / grad.abs().amax().clamp(min=1e-30)
        grad_dots = torch.zeros_like(dots, dtype=torch.float16)
        grad_views: list[Tensor | None] = []
        for turn, direction in enumerate(ctx.directions):
            view = views[4 * turn : 4 * turn + 4]
            gram, *_, lengths = view
            grid = _grid(view, QUERIES_BACK)
            grad_gram = gram.new_empty(len(gram), grid[0] // len(gram), *gram.shape[1:])
            grad_lengths = lengths.new_zeros(len(gram), *lengths.shape)
            _score_backward[grid](
                grad, scale, dots, *view, grad_dots, grad_gram, grad_lengths,
                *_arguments(dots, direction, ctx.settings, turn > 0, QUERIES_BACK),
                **tile_options(dots, stages=2, registers=128 if direction == "i2t" else None),
            )  # fmt: skip
            grad_views += [grad_gram.sum(1).div_(scale), None, None, grad_lengths.sum(0).div_(scale)]
        matrix = grad_dots.view(len(rows), len(columns))
        with torch.autocast(dots.device.type, enabled=False):
            grad_images = wide_product(matrix, columns).div_(scale).view(*dots.shape[:2], -1)
            grad_texts = wide_product(matrix.T, rows).div_(scale).view(*dots.shape[2:], -1)
        return grad_images, grad_texts, None, None, *grad_views


def _grid(view: Sequence[Tensor], queries: int) -> tuple[int]:
    return (len(view[0]) * triton.cdiv(len(view[3]), queries),)


def _arguments(
    dots: Tensor, direction: str, settings: AttentionSettings, add: bool, queries: int
) -> tuple[float | str | None, ...]:
    """The arguments of both kernels after their tensors."""
    images, regions, texts, words = dots.shape
    smooth, focus, lambda_lse = settings
    sizes = images, texts, regions, words // 8, float(smooth), float(lambda_lse or 0)
    return (
        *sizes,
        int(direction == "i2t"),
        focus,
        lambda_lse is not None,
        add,
        queries,
        side(regions),
        side(words),
    )
