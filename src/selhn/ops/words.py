"""Words masked, replaced and deleted at random: some thirty small functions of the tokens, or one kernel."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.ops.gpu import fusable


class WordChanges(NamedTuple):
    """A word is masked if its draw is below `masked`, else replaced below `replaced`, else deleted below `deleted`."""

    special: Bool[Tensor, " V"]
    """Ids that never change."""
    inner: Bool[Tensor, " V"]
    """Ids that continue a word."""
    ordinary: Int[Tensor, " W"]
    """Ids that may replace a word."""
    mask_id: int
    pad_id: int
    masked: float
    replaced: float
    deleted: float


def change_words(
    tokens: Int[Tensor, "T N"],
    mask: Bool[Tensor, "T N"],
    draws: Float[Tensor, "T N"],
    chosen: Int[Tensor, "T N"],
    how: WordChanges,
) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
    """The changed tokens and their mask; what follows a deleted word moves left.

    The pieces of a word share the draw of its first. `chosen` are the places in `how.ordinary` of what
    would replace each token.
    """
    if fusable(tokens, mask, draws, chosen) and tokens.numel() > 0:
        from selhn.kernels.words import change_words as fused

        return fused(tokens, mask, draws, chosen, how)
    position = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    first_piece = position.masked_fill(how.inner[tokens], 0).cummax(1).values
    fate = draws.gather(1, first_piece).masked_fill(how.special[tokens] | ~mask, 1.0)
    changed = torch.where(fate < how.replaced, how.ordinary[chosen], tokens)
    changed = changed.masked_fill(fate < how.masked, how.mask_id)
    kept = mask & ~((fate >= how.replaced) & (fate < how.deleted))
    order = kept.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    kept = kept.gather(1, order)
    return changed.gather(1, order).masked_fill(~kept, how.pad_id).to(tokens.dtype), kept
