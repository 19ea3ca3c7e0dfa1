"""BFAN: Liu et al., Focus Your Attention: A Bidirectional Focal Attention Network, ACM Multimedia 2019.

SCAN's attention in both directions; weights below the average are dropped and the rest rescaled.
A score is the sum of both means, from -2 to 2.
"""

from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, with_head
from selhn.models.layouts import FRAGMENT_NAMES, FRAGMENTS, SMOOTH, AuthorsLayout
from selhn.models.scan import StackedAttention
from selhn.models.table import Paper, model

_PAPER = Paper("Liu et al., ACM Multimedia 2019", "https://arxiv.org/abs/1909.11416")


def _layout(focus: str) -> AuthorsLayout:
    return AuthorsLayout(FRAGMENT_NAMES, {**FRAGMENTS, "focal_type": focus}, SMOOTH)


@model(_PAPER, "cross-attention", official=_layout("equal"))
def bfan_equal(common: WordSettings, smooth: float = 20.0) -> CrossAttention:
    """BFAN (equal): a fragment is kept if its weight is above the mean weight."""
    return with_head(StackedAttention(("t2i", "i2t"), smooth, focus="equal"), common)


@model(_PAPER, "cross-attention", official=_layout("prob"))
def bfan_prob(common: WordSettings, smooth: float = 20.0) -> CrossAttention:
    """BFAN (prob): the mean is itself weighted, with the square roots of the weights."""
    return with_head(StackedAttention(("t2i", "i2t"), smooth, focus="prob"), common)
