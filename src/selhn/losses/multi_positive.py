"""Softmax cross-entropy with several positives per anchor: Yang et al., UniCL, CVPR 2022."""

import math

import torch
from torch.nn.functional import logsigmoid

from selhn.kernels import AnchorStatistics, PerAnchor
from selhn.losses.infonce import ScaledLoss


class MultiPositiveInfoNCE(ScaledLoss):
    """The cross-entropy of an anchor's softmax and a target spread evenly over all pairs of its image.

    Equation, for anchor V_i, with P(i) the pairs that show the image of pair i, itself among them:

        -(1 / |P(i)|) sum_{j in P(i)} log( e^(s(V_i, T_j) / t) / sum_k e^(s(V_i, T_k) / t) ),  t = temperature

    It needs `image_ids` to know P(i); without them every pair is alone and this is `InfoNCE`. An anchor
    without negatives counts as 0.

    Args:
        temperature: what scores are divided by.
        learn, reduction: see `ScaledLoss`.

    References:
        Yang et al., Unified Contrastive Learning in Image-Text-Label Space, CVPR 2022.
        Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, for one kind of input.

    Relations:
        `InfoNCE` leaves the other pairs of an image out; here they are moved towards the anchor too. The loss
        of an anchor with n positives cannot fall below log n.

    Example:
        >>> loss = MultiPositiveInfoNCE()(image_emb @ text_emb.T, image_ids=image_ids)
    """

    needs = ("log_sum_exp", "positive_mean")
    mask_same_image = False  # they stay in the denominator

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        """`InfoNCE` of an anchor's own pair, and how much less the others of its image score."""
        own = -logsigmoid(self.logits(anchors.positive) - anchors["log_sum_exp"])
        less = self.logits(anchors.positive - anchors["positive_mean"])
        return torch.where(anchors.num_negatives > 0, own + less, 0.0)

    def plateau(self, batch: int) -> float | None:
        """log B, whatever the number of positives."""
        return math.log(batch)
