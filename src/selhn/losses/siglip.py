"""The sigmoid loss over pairs: Zhai et al., SigLIP, ICCV 2023."""

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from selhn.base.types import Reduction
from selhn.losses.checks import require_number
from selhn.losses.infonce import ScaledLoss
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss


@loss(
    "siglip",
    "softplus(-s_p/t - bias) + sum_n softplus(s_n/t + bias)",
    "Zhai et al. (SigLIP), ICCV 2023",
    shift_invariant=False,
)
class SigLIP(ScaledLoss):
    """Every pair of an image and a text is its own yes-or-no question.

    Equation of the paper, with z_ij = 1 if i and j are a pair and -1 otherwise:

        (1 / B) sum_i sum_j -log sigmoid( z_ij (s(V_i, T_j) / temperature + bias) )

    The loss of an anchor is its row or column sum: the mean over the anchors of both directions is the
    paper's value. An anchor without negatives counts as 0. Temperature and bias are learnt, as in the paper: at
    their initial values even a positive of cosine 1 has probability 1/2.

    Args:
        temperature: what scores are divided by; the paper's training starts at t = 10, which is 0.1 here.
        bias: added to the scores, negative because nearly all pairs do not match; training starts at -10.
        learn: see `ScaledLoss`; `learn=False` keeps both at their settings.
        reduction: see `AbstractLoss`.

    References:
        Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023.

    Relations:
        `InfoNCE` compares the pairs of an anchor with each other; this does not, so it changes when a
        constant is added to all scores.

    Example:
        >>> loss = SigLIP()(image_emb @ text_emb.T)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        bias: float = -10.0,
        learn: bool = True,
        reduction: Reduction = "mean",
    ):
        super().__init__(temperature, learn, reduction)
        self._bias = require_number("bias", bias, signed=True)
        if learn:
            self.learnt_bias = nn.Parameter(torch.tensor(float(bias)))

    @property
    def needs(self) -> dict[str, Constants]:
        return {"softplus_sum": self.constants}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        of_positive = -logsigmoid(self.logits(anchors.positive))
        return torch.where(anchors.num_negatives > 0, of_positive + anchors["softplus_sum"], 0.0)
