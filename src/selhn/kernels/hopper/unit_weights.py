"""The Triton kernels of the weights with which words look at regions; imported only where they run.

A tile is a pair, as in `triton_tiles`. The weights are those of `selhn.ops.unit_attention`: what a word
sees with them has length 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from selhn.kernels import pair_tiles as tiles
from selhn.kernels.pair_tiles import EPSILON, LEAST_SQUARE, SLOPE

TEXTS = 8
"""Texts per program in the forward pass."""
TEXTS_BACK = 16
"""Texts per program in the backward pass, which sums their parts of the Gram gradient in registers."""
# Compiled once for all batch sizes.
ANY_PAIRS = {
    "do_not_specialize": ["num_texts", "regions", "eights", "words", "wide"],
    "do_not_specialize_on_alignment": ["region_mask"],
}


@triton.jit(**ANY_PAIRS)
def _weights(
    dots, gram, region_mask, weights, num_texts, regions, eights, words, wide, smooth,
    TEXTS: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    image, first = tiles.place(num_texts, TEXTS)
    high, low, looked_at = tiles.read_context(gram, region_mask, image, regions, REGIONS)
    at, inside = tiles.tile(num_texts, regions, eights, REGIONS, WORDS)
    region, word, width = tl.arange(0, REGIONS)[:, None], tl.arange(0, WORDS)[None, :], wide * 8
    for text in range(first, tl.minimum(first + TEXTS, num_texts)):
        pair, start = tiles.pair_at(image, text, num_texts, regions, eights, 0)
        s = tl.load(dots + start + at, mask=inside, other=0.0)
        _, _, w, _, _, _, square = tiles.attend(s, high, low, looked_at, smooth, 0, None)
        w *= (1 / (tl.sqrt(tl.maximum(square, LEAST_SQUARE)) + EPSILON))[None, :]
        to = weights + pair * words * width + word * width + region
        tl.store(to, tiles.half(w), mask=(region < width) & (word < words))


@triton.jit(**ANY_PAIRS)
def _weights_backward(
    grad, scale, dots, gram, region_mask, grad_dots, grad_gram, num_texts, regions, eights, words, wide, smooth,
    TEXTS: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """All gradients times `scale`. Pairs without any, as most are with mined negatives, are skipped."""
    image, first = tiles.place(num_texts, TEXTS)
    high, low, looked_at = tiles.read_context(gram, region_mask, image, regions, REGIONS)
    at, inside = tiles.tile(num_texts, regions, eights, REGIONS, WORDS)
    region, word, width = tl.arange(0, REGIONS)[:, None], tl.arange(0, WORDS)[None, :], wide * 8
    factor = tl.load(scale)
    d_gram = tl.zeros([REGIONS, REGIONS], tl.float32)
    for text in range(first, tl.minimum(first + TEXTS, num_texts)):
        pair, start = tiles.pair_at(image, text, num_texts, regions, eights, 0)
        of_pair = grad + pair * words * width + word * width + region
        pull = tl.load(of_pair, mask=(region < regions) & (word < words), other=0.0) * factor
        if tl.sum(tl.sum((pull != 0).to(tl.int32), axis=0), axis=0) > 0:
            s = tl.load(dots + start + at, mask=inside, other=0.0)
            active, norm, w, w_high, gram_w, _, square = tiles.attend(
                s, high, low, looked_at, smooth, 0, None
            )
            root = tl.sqrt(tl.maximum(square, LEAST_SQUARE))
            inverse = 1 / (root + EPSILON)
            # A word that attends to nothing has no direction.
            d_square = tl.where(
                square > LEAST_SQUARE, -0.5 * tl.sum(pull * w, axis=0) * inverse * inverse / root, 0.0
            )
            d_gram = tl.dot(tiles.half(w * d_square[None, :]), tl.trans(w_high), d_gram)
            d_w = pull * inverse[None, :] + gram_w * (2 * d_square)[None, :]
            d_logits = w * (d_w - tl.sum(w * d_w, axis=0)[None, :])
            along = tl.sum(d_logits * active, axis=1) / ((norm + EPSILON) * tl.maximum(norm, EPSILON))
            d_s = (d_logits - active * along[:, None]) * (smooth / (norm + EPSILON))[:, None]
            tl.store(grad_dots + start + at, tiles.half(tl.where(s > 0, d_s, SLOPE * d_s)), mask=inside)
    k, other = tl.arange(0, REGIONS)[:, None], tl.arange(0, REGIONS)[None, :]
    to = grad_gram + tl.program_id(0).to(tl.int64) * regions * regions + k * regions + other
    tl.store(to, d_gram, mask=(k < regions) & (other < regions))


def unit_weights(dots: Tensor, gram: Tensor, region_mask: Tensor, num_words: int, smooth: float) -> Tensor:
    """The weights (I, T * N, M) in half precision, M a multiple of eight, from products (I, M, T, N)."""
    images, regions, texts, _ = dots.shape
    weights = dots.new_empty(images, texts * num_words, regions + -regions % 8, dtype=torch.float16)
    _weights[(images * triton.cdiv(texts, TEXTS),)](
        dots,
        gram,
        region_mask,
        weights,
        *_pair_sizes(dots, num_words, smooth, TEXTS),
        **tiles.tile_options(dots, 3),
    )
    return weights


def unit_weights_backward(
    grad: Tensor,
    scale: Tensor,
    dots: Tensor,
    gram: Tensor,
    region_mask: Tensor,
    num_words: int,
    smooth: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of the products, in half precision, and of the Gram matrices, both times `scale`."""
    parts = triton.cdiv(dots.shape[2], TEXTS_BACK)
    grad_dots = torch.zeros_like(dots, dtype=torch.float16)
    grad_gram = gram.new_empty(len(gram), parts, *gram.shape[1:])
    _weights_backward[(len(gram) * parts,)](
        grad, scale, dots, gram, region_mask, grad_dots, grad_gram,
        *_pair_sizes(dots, num_words, smooth, TEXTS_BACK), **tiles.tile_options(dots, 2),
    )  # fmt: skip
    return grad_dots, grad_gram.sum(1)


def _pair_sizes(dots: Tensor, words: int, smooth: float, texts: int) -> tuple[int | float, ...]:
    """The arguments of both attention kernels after their tensors."""
    _, regions, num_texts, padded = dots.shape
    sizes = num_texts, regions, padded // 8, words, (regions + 7) // 8, float(smooth)
    return *sizes, texts, tiles.side(regions), tiles.side(padded)
