"""The threshold that NAAF learns from the texts of a batch, one after the other: Zhang et al., CVPR 2022.

A text is scored with the threshold that the texts before it have left. Which image scores highest and which
lowest then decides what its words add to the statistics, and these give the next threshold. Nothing in this
chain can be found beforehand: to guess the choices of all texts and to correct the guesses together takes a
third as many passes as there are texts.

But a word's feature f changes only where the threshold passes a product. A GPU therefore first makes, for all
texts at once, the products of every word in descending order, and with each the f of a threshold just below
it. A second kernel, of one program, goes through the texts: f is then a search in a table.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.ops.gpu import takes_float32

KEPT = 0.3
"""Momentum: the share of the old threshold in a new one."""
Learning = Float[Tensor, "7"]
"""The threshold of training and that of evaluation; the number of collected words, sum and sum of squares of
those that match, and of those that do not."""


class ThresholdRule(NamedTuple):
    """`smooth` scales the softmax over regions, `alpha` one of two densities; fewer than `min_words` teach nothing."""

    smooth: float
    alpha: float
    min_words: int


def walk_texts(
    dots: Float[Tensor, "I M N t"],
    best: Float[Tensor, "I N t"],
    matched: Float[Tensor, "I t"],
    gram: Float[Tensor, "I M M"],
    token_mask: Bool[Tensor, "t N"],
    own: Int[Tensor, " t"],
    state: Learning,
    rule: ThresholdRule,
) -> tuple[Float[Tensor, " t"], Learning]:
    """The threshold of every text, and the state after the last.

    `best` is the largest product of a word, `matched` the part of a score that no threshold changes, `own` the
    image that belongs to a text. Products and `best` are 0 at padding, and a threshold is not below 0.
    """
    words = collected_words(best, token_mask, own)
    if takes_float32(dots, best, matched, gram):
        from selhn.kernels.thresholds import walk_texts as fused

        return fused(dots, best, matched, gram, token_mask, own, words, state, rule)
    shares = (token_mask / token_mask.sum(1, keepdim=True).clamp(min=1)).to(dots.dtype)
    dots, best, used = dots.permute(3, 0, 1, 2).contiguous(), best.permute(2, 0, 1), []
    # A softmax over what is above the threshold, without its sum: f does not depend on the scale.
    powers = (dots - best[:, :, None]).mul_(rule.smooth).exp_()
    for text in range(len(dots)):
        used.append(state[0])
        threshold = state[0].to(dots.dtype)
        seen = powers[text].masked_fill_(dots[text] <= threshold, 0)
        square = torch.bmm(gram, seen).mul_(seen).sum(1).clamp_(min=1e-16)
        features = (seen * dots[text]).sum(1).div_(square.sqrt_())
        scores = matched[:, text] + features.add_((best[text] - threshold).clamp_(max=0)) @ shares[text]
        adds, mined = mined_words(scores[:, None], words[text : text + 1], own[text : text + 1])
        state = learnt_thresholds(torch.cat([state[:2], state[2:] + adds[0]]), mined[0], rule)
    return torch.stack(used), state


def collected_words(
    best: Float[Tensor, "I N t"], token_mask: Bool[Tensor, "t N"], own: Int[Tensor, " t"]
) -> Float[Tensor, "t I 5"]:
    """What a text adds to the statistics, for every image as the one that scores lowest."""
    of_images = best.double().transpose(1, 2)
    sums = torch.stack([of_images.sum(2), of_images.square().sum(2)], 2).transpose(0, 1)
    matching = sums.gather(1, own[:, None, None].expand(-1, 1, 2)).expand_as(sums)
    number = token_mask.sum(1).to(sums.dtype)[:, None, None].expand(*sums.shape[:2], 1)
    return torch.cat([number, matching, sums], 2)


def mined_words(
    scores: Float[Tensor, "I t"], words: Float[Tensor, "t I 5"], own: Int[Tensor, " t"]
) -> tuple[Float[Tensor, "t 5"], Bool[Tensor, " t"]]:
    """What each text adds, and whether it does: if its own image scores highest."""
    mined = scores.gather(0, own[None])[0] >= scores.amax(0)
    lowest = scores.argmin(0)[:, None, None].expand(-1, 1, words.shape[2])
    return words.gather(1, lowest)[:, 0] * mined[:, None], mined


def learnt_thresholds(state: Learning, mined: Bool[Tensor, ""], rule: ThresholdRule) -> Learning:
    """The thresholds after words were collected; `mined` is whether the last text added to them."""
    both, number, sums = state[:2], state[2], state[3:]
    mean, square = sums[::2] / number, sums[1::2] / number
    variance = (square - mean.square()).clamp(min=0) * number / (number - 1)
    (mean_pos, mean_neg), (var_pos, var_neg) = mean, variance
    a = var_pos - var_neg
    b = 2 * (mean_pos * var_neg - mean_neg * var_pos)
    ratio = var_neg.sqrt() / (rule.alpha * var_pos.sqrt()) + 1e-8
    c = mean_neg.square() * var_pos - mean_pos.square() * var_neg + 2 * var_pos * var_neg * ratio.log()
    inside = b.square() - 4 * a * c
    crossing = (-b + inside.clamp(min=0).sqrt()) / (2 * a + 1e-10)
    found = torch.where(inside > 0, torch.stack([crossing, mean_pos - 3 * var_pos.sqrt()]), both)
    found = found.masked_fill((found < 0) | (found > 1), 0)
    new = torch.where(mined & (number > rule.min_words), (1 - KEPT) * found + KEPT * both, both)
    # Official: a batch begins without a threshold, and ends without one if it has too few words.
    return torch.cat([torch.where(number < rule.min_words, 0.0, new), state[2:]])
