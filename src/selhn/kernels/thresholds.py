"""The Triton kernels of `thresholds`; imported only where they run."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from selhn.ops import thresholds
from selhn.ops.thresholds import ThresholdRule

KEPT = tl.constexpr(thresholds.KEPT)
REGIONS, COLUMNS = 8, 128
"""Regions of an image, and words of all texts, per program of the tables."""
PAIRS = 4096
"""Words of pairs that the walk scores at a time."""
# Compiling takes longer than many runs: compiled once for all batch sizes.
ANY_SIZE = {"do_not_specialize": ["images", "texts", "words", "regions", "columns", "min_words"]}


@triton.jit
def _tile(regions, columns, REGIONS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of a program: the first product of its image, its regions, its words, and which of both exist."""
    image = tl.program_id(0)
    region = tl.program_id(2) * REGIONS + tl.arange(0, REGIONS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (region < regions)[:, None] & (column < columns)[None, :]
    return image, image.to(tl.int64) * regions * columns, region, column, inside


@triton.jit
def _not_after(value, number, s, region):
    """Whether a region of this value comes before others, or is the same; equal ones come by their numbers."""
    return tl.where(number <= region[:, None], value[None, :] >= s, value[None, :] > s)


@triton.jit(**ANY_SIZE)
def _grow(
    dots, best, gram, grown, regions, columns, smooth, REGIONS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """How a region adds to |x|^2, if x = sum of e v already has all that come before: e (e G + 2 sum of e_j G_j)."""
    image, start, region, column, inside = _tile(regions, columns, REGIONS, COLUMNS)
    at = start + region[:, None] * columns + column[None, :]
    s = tl.load(dots + at, mask=inside, other=0.0)
    top = tl.load(best + image * columns + column, mask=column < columns, other=0.0)
    total = tl.zeros([REGIONS, COLUMNS], tl.float32)
    for number in range(0, regions):
        value = tl.load(dots + start + number * columns + column, mask=column < columns, other=0.0)
        g = tl.load(gram + (image * regions + number) * regions + region, mask=region < regions, other=0.0)
        g = tl.where(region == number, g, 2 * g)
        e = tl.exp(smooth * (value - top))
        total += tl.where(_not_after(value, number, s, region), e[None, :] * g[:, None], 0.0)
    tl.store(grown + at, tl.exp(smooth * (s - top[None, :])) * total, mask=inside)


@triton.jit(**ANY_SIZE)
def _sort(
    dots, best, grown, ordered, features, images, texts, words, regions, columns, smooth,
    REGIONS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Every product at its place in the order, and f for all that come before and the product itself."""
    image, start, region, column, inside = _tile(regions, columns, REGIONS, COLUMNS)
    at = start + region[:, None] * columns + column[None, :]
    s = tl.load(dots + at, mask=inside, other=0.0)
    top = tl.load(best + image * columns + column, mask=column < columns, other=0.0)
    place = tl.zeros([REGIONS, COLUMNS], tl.int32)
    dot = tl.zeros([REGIONS, COLUMNS], tl.float32)
    square = tl.zeros([REGIONS, COLUMNS], tl.float32)
    for number in range(0, regions):
        one = start + number * columns + column
        value = tl.load(dots + one, mask=column < columns, other=0.0)
        more = tl.load(grown + one, mask=column < columns, other=0.0)
        e = tl.exp(smooth * (value - top))
        counts = _not_after(value, number, s, region)
        place += counts.to(tl.int32)
        dot += tl.where(counts, (e * value)[None, :], 0.0)
        square += tl.where(counts, more[None, :], 0.0)
    pair = ((column % texts) * images + image).to(tl.int64) * words + column // texts
    to = pair[None, :] * regions + place - 1
    tl.store(ordered + to, s, mask=inside)
    tl.store(features + to, dot / tl.sqrt(tl.maximum(square, 1e-16)), mask=inside)


@triton.jit
def _learnt(
    threshold, safe, mined, number, pos, pos_squares, neg, neg_squares, min_words, ALPHA: tl.constexpr
):
    """`learnt_thresholds`, in the same order."""
    mean_pos, mean_neg = pos / number, neg / number
    var_pos = tl.maximum(pos_squares / number - mean_pos * mean_pos, 0.0) * number / (number - 1)
    var_neg = tl.maximum(neg_squares / number - mean_neg * mean_neg, 0.0) * number / (number - 1)
    a = var_pos - var_neg
    b = 2 * (mean_pos * var_neg - mean_neg * var_pos)
    ratio = tl.sqrt(var_neg) / (ALPHA * tl.sqrt(var_pos)) + 1e-8
    c = mean_neg * mean_neg * var_pos - mean_pos * mean_pos * var_neg
    c += 2 * var_pos * var_neg * tl.log(ratio)
    inside = b * b - 4 * a * c
    crossing = (-b + tl.sqrt(tl.maximum(inside, 0.0))) / (2 * a + 1e-10)
    found = tl.where(inside > 0, crossing, threshold)
    found_safe = tl.where(inside > 0, mean_pos - 3 * tl.sqrt(var_pos), safe)
    found = tl.where((found < 0) | (found > 1), 0.0, found)
    found_safe = tl.where((found_safe < 0) | (found_safe > 1), 0.0, found_safe)
    learns = mined & (number > min_words)
    threshold = tl.where(learns, (1 - KEPT) * found + KEPT * threshold, threshold)
    safe = tl.where(learns, (1 - KEPT) * found_safe + KEPT * safe, safe)
    too_few = number < min_words
    return tl.where(too_few, 0.0, threshold), tl.where(too_few, 0.0, safe)


@triton.jit(**ANY_SIZE)
def _walk(
    ordered, features, best, matched, token_mask, own, collected, state, used, after,
    images, texts, words, regions, min_words,
    ALPHA: tl.constexpr, IMAGES: tl.constexpr, WORDS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """All texts in turn, in one program."""
    threshold, safe, number = tl.load(state), tl.load(state + 1), tl.load(state + 2)
    pos, pos_squares = tl.load(state + 3), tl.load(state + 4)
    neg, neg_squares = tl.load(state + 5), tl.load(state + 6)
    word = tl.arange(0, WORDS)[None, :]
    for text in range(0, texts):
        tl.store(used + text, threshold)
        limit = threshold.to(tl.float32)
        real = tl.load(token_mask + text * words + word, mask=word < words, other=0) != 0
        count = tl.maximum(tl.sum(tl.sum(real.to(tl.float32), axis=1), axis=0), 1.0)
        matching = tl.load(own + text)
        its, highest, lowest, lowest_at = float("-inf"), float("-inf"), float("inf"), 0
        for first in range(0, images, IMAGES):
            image = first + tl.arange(0, IMAGES)
            there = image < images
            inside = there[:, None] & real
            pair = (text * images + image).to(tl.int64)[:, None] * words + word
            # A binary search: how many of a word's products are above the threshold.
            above = tl.zeros([IMAGES, WORDS], tl.int32)
            for level in tl.static_range(LEVELS):
                more = above + (1 << (LEVELS - 1 - level))
                at = ordered + pair * regions + more - 1
                value = tl.load(at, mask=inside & (more <= regions), other=float("-inf"))
                above = tl.where(value > limit, more, above)
            each = tl.load(features + pair * regions + above - 1, mask=inside & (above > 0), other=0.0)
            each += tl.minimum(tl.load(best + pair, mask=inside, other=0.0) - limit, 0.0)
            score = tl.sum(tl.where(inside, each, 0.0), axis=1) / count
            score += tl.load(matched + image * texts + text, mask=there, other=0.0)
            its = tl.maximum(its, tl.max(tl.where(image == matching, score, float("-inf")), axis=0))
            highest = tl.maximum(highest, tl.max(tl.where(there, score, float("-inf")), axis=0))
            low, at_low = tl.min(tl.where(there, score, float("inf")), axis=0, return_indices=True)
            lowest_at = tl.where(low < lowest, first + at_low, lowest_at)
            lowest = tl.minimum(low, lowest)
        mined = its >= highest
        adds = collected + (text * images + lowest_at).to(tl.int64) * 5
        number += tl.where(mined, tl.load(adds), 0.0)
        pos += tl.where(mined, tl.load(adds + 1), 0.0)
        pos_squares += tl.where(mined, tl.load(adds + 2), 0.0)
        neg += tl.where(mined, tl.load(adds + 3), 0.0)
        neg_squares += tl.where(mined, tl.load(adds + 4), 0.0)
        threshold, safe = _learnt(
            threshold, safe, mined, number, pos, pos_squares, neg, neg_squares, min_words, ALPHA
        )
    tl.store(after, threshold)
    tl.store(after + 1, safe)
    tl.store(after + 2, number)
    tl.store(after + 3, pos)
    tl.store(after + 4, pos_squares)
    tl.store(after + 5, neg)
    tl.store(after + 6, neg_squares)


def walk_texts(
    dots: Tensor, best: Tensor, matched: Tensor, gram: Tensor, token_mask: Tensor, own: Tensor,
    collected: Tensor, state: Tensor, rule: ThresholdRule,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`selhn.ops.walk_texts`."""
    images, regions, words, texts = dots.shape
    dots, best, columns = dots.contiguous(), best.contiguous(), words * texts
    grown = torch.empty_like(dots)
    ordered, features = (dots.new_empty(texts, images, words, regions) for _ in range(2))
    grid = images, triton.cdiv(columns, COLUMNS), triton.cdiv(regions, REGIONS)
    tile = float(rule.smooth), REGIONS, COLUMNS
    _grow[grid](dots, best, gram.contiguous(), grown, regions, columns, *tile, num_warps=4)
    _sort[grid](
        dots, best, grown, ordered, features, images, texts, words, regions, columns, *tile, num_warps=4
    )
    used, after, wide = state.new_empty(texts), torch.empty_like(state), triton.next_power_of_2(words)
    by_text = [part.contiguous() for part in (best.permute(2, 0, 1), matched, token_mask, own, collected)]
    _walk[(1,)](
        ordered, features, *by_text, state, used, after, images, texts, words, regions, rule.min_words,
        rule.alpha, min(triton.next_power_of_2(images), max(1, PAIRS // wide)), wide, regions.bit_length(),
        num_warps=16,
    )  # fmt: skip
    return used, after
