"""Parts of Triton kernels that take a pair as a tile, as it is stored in `dots` (I, M, T, N).

Regions of the image are down, words of the text across. The fragments of the context are along AXIS, 0 for
regions and 1 for words; those of the query along the other. A program takes one context and some queries, one
after the other, so that it reads the context's Gram matrix once. N is a multiple of 8: a row of a tile then
begins at a full sector of memory, and is read four numbers at a time.
"""

import triton
import triton.language as tl
from torch import Tensor

from selhn.ops import cross_scores

SLOPE = tl.constexpr(cross_scores.SLOPE)
EPSILON = tl.constexpr(cross_scores.EPSILON)
LEAST_SQUARE = tl.constexpr(1e-30)
LARGEST_HALF = tl.constexpr(65504.0)


@triton.jit
def halves(x):
    """Two numbers in half precision whose sum is x, for an x of about 1, within 2^-22."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def half(x):
    """Rounded, and finite where x is."""
    return tl.clamp(x, -LARGEST_HALF, LARGEST_HALF, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def place(num_queries, QUERIES: tl.constexpr):
    """The context of this program, and its first query."""
    parts = tl.cdiv(num_queries, QUERIES)
    return tl.program_id(0) // parts, tl.program_id(0) % parts * QUERIES


@triton.jit
def tile(num_texts, regions, eights, REGIONS: tl.constexpr, WORDS: tl.constexpr):
    """Offsets of a pair's numbers from its first one, and which of them exist."""
    region, word = tl.arange(0, REGIONS)[:, None], tl.arange(0, WORDS)[None, :]
    words = eights * 8
    return region * (num_texts * words) + word, (region < regions) & (word < words)


@triton.jit
def pair_at(context, query, num_texts, regions, eights, AXIS: tl.constexpr):
    """Where the score of a pair is, and the first of its numbers."""
    if AXIS == 0:
        image, text = context, query
    else:
        image, text = query, context
    across = num_texts.to(tl.int64)
    return image * across + text, (image * regions * across + text) * (eights * 8)


@triton.jit
def read_context(gram, mask, context, size, K: tl.constexpr):
    """The Gram matrix of a context, and which fragments are looked at: all, if none is real."""
    k, other = tl.arange(0, K), tl.arange(0, K)[None, :]
    at = context.to(tl.int64) * size * size + k[:, None] * size + other
    high, low = halves(tl.load(gram + at, mask=(k[:, None] < size) & (other < size), other=0.0))
    real = tl.load(mask + context * size + k, mask=k < size, other=0) != 0
    return high, low, real | (tl.sum(real.to(tl.int32), axis=0) == 0)


@triton.jit
def attend(s, high, low, looked_at, smooth, AXIS: tl.constexpr, FOCUS: tl.constexpr):
    """f(s), and what it is divided by; the weights w, also rounded, and G w; q . x and x . x."""
    active = tl.where(s > 0, s, SLOPE * s)
    norm = tl.sqrt(tl.sum(active * active, axis=1 - AXIS))
    logits = active * tl.expand_dims(smooth / (norm + EPSILON), 1 - AXIS)
    logits = tl.where(tl.expand_dims(looked_at, 1 - AXIS), logits, float("-inf"))
    power = tl.exp(logits - tl.expand_dims(tl.max(logits, axis=AXIS), AXIS))
    w = power * tl.expand_dims(1 / tl.sum(power, axis=AXIS), AXIS)
    if FOCUS is not None:
        if FOCUS == "equal":
            average = tl.sum(w, axis=AXIS) / tl.sum(looked_at.to(tl.float32), axis=0)
        else:
            root = tl.sqrt(w)
            average = tl.sum(root * w, axis=AXIS) / tl.sum(root, axis=AXIS)
        # The largest, whose power is 1, is above every average but that of its equals.
        w = tl.where((w > tl.expand_dims(average, AXIS)) | (power == 1), w, 0.0)
        w *= tl.expand_dims(1 / tl.sum(w, axis=AXIS), AXIS)
    w_high, w_low = halves(w)
    if AXIS == 0:
        gram_w = tl.dot(high, w_high, tl.dot(high, w_low, tl.dot(low, w_high)))
    else:
        gram_w = tl.dot(w_high, high, tl.dot(w_low, high, tl.dot(w_high, low)))
    return active, norm, w, w_high, gram_w, tl.sum(w * s, axis=AXIS), tl.sum(w * gram_w, axis=AXIS)


def tile_options(dots: Tensor, stages: int, registers: int | None = None) -> dict[str, int]:
    """A warp for every 16 rows of a matrix product; the next tiles are read ahead if there is space for them.

    Fewer registers let more programs run at once: measured on an H200 with tiles of 64 x 32, a quarter
    faster.
    """
    regions, words = side(dots.shape[1]), side(dots.shape[3])
    options = {"num_warps": max(regions, words) // 16, "num_stages": stages if regions * words <= 4096 else 1}
    if registers is not None and regions * words <= 2048:
        options["maxnreg"] = registers
    return options


def side(size: int) -> int:
    """The size of a tile: a power of two that a matrix product supports."""
    return max(16, triton.next_power_of_2(size))
