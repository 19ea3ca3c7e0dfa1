"""Symmetric softmax cross-entropy: van den Oord et al., 2018; Radford et al., CLIP, ICML 2021."""

import math

from torch.nn.functional import logsigmoid

from selhn.kernels import AnchorStatistics, PerAnchor
from selhn.losses.scaled import ScaledLoss


class InfoNCE(ScaledLoss):
    """The cross-entropy of an anchor's softmax over its positive and all of its negatives.

    Equation, for anchor V_i:  -log( e^(s(V_i, T_i) / temperature) / sum_j e^(s(V_i, T_j) / temperature) )

    The mean over the anchors of both directions is CLIP's loss, which learns its temperature.

    Args:
        temperature: what scores are divided by; CLIP's training starts at 0.07.
        learn, reduction: see `ScaledLoss`.

    References:
        van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018.
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

    Relations:
        As the temperature goes to 0, `temperature` times it becomes `TripletHN` without a margin. `SigLIP`
        treats every pair independently.

    Example:
        >>> loss = InfoNCE(temperature=0.07)(image_emb @ text_emb.T)
    """

    needs = ("log_sum_exp",)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return -logsigmoid(self.logits(anchors.positive) - anchors["log_sum_exp"])

    def plateau(self, batch: int) -> float | None:
        """log B: every text is as likely as any other."""
        return math.log(batch)
