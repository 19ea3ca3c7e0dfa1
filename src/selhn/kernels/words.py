"""The Triton kernel of `words`; imported only where it runs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from selhn.ops.words import WordChanges


@triton.jit
def _larger(first, second):
    return tl.maximum(first, second)


@triton.jit(do_not_specialize=["N", "mask_id", "pad_id"])
def _change_words(
    tokens, mask, draws, chosen, special, inner, ordinary, changed, kept_mask, N, mask_id, pad_id,
    masked, replaced, deleted, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One text."""
    row = tl.program_id(0).to(tl.int64) * N
    position = tl.arange(0, COLUMNS)
    inside = position < N
    token = tl.load(tokens + row + position, inside, 0)
    real = tl.load(mask + row + position, inside, 0) != 0
    first_piece = tl.where(tl.load(inner + token, inside, 0) != 0, 0, position)
    fate = tl.load(draws + row + tl.associative_scan(first_piece, 0, _larger), inside, 1.0)
    fate = tl.where((tl.load(special + token, inside, 0) != 0) | ~real, 1.0, fate)
    other = tl.load(ordinary + tl.load(chosen + row + position, inside, 0), inside, 0)
    token = tl.where(fate < masked, mask_id, tl.where(fate < replaced, other, token))
    kept = real & ~((fate >= replaced) & (fate < deleted))
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    count = tl.sum(kept.to(tl.int32), 0)
    tl.store(changed + row + place, token, kept)
    tl.store(changed + row + position, pad_id, inside & (position >= count))
    tl.store(kept_mask + row + position, position < count, inside)


def change_words(
    tokens: Tensor, mask: Tensor, draws: Tensor, chosen: Tensor, how: WordChanges
) -> tuple[Tensor, Tensor]:
    """`selhn.ops.change_words`."""
    texts, size = tokens.shape
    given = [
        tensor.contiguous() for tensor in (tokens, mask, draws, chosen, how.special, how.inner, how.ordinary)
    ]
    changed, kept = torch.empty_like(given[0]), torch.empty_like(given[1])
    _change_words[(texts,)](
        *given, changed, kept, size, how.mask_id, how.pad_id, how.masked, how.replaced, how.deleted,
        triton.next_power_of_2(size), num_warps=1,
    )  # fmt: skip
    return changed, kept
