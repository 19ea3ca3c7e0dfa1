"""Several positives per anchor: softmax (Yang et al., UniCL, CVPR 2022) and sigmoid (Xiao et al., FLAIR, CVPR 2025)."""

import math

import torch
from torch.nn.functional import logsigmoid

from selhn.losses.infonce import ScaledLoss
from selhn.losses.siglip import SigLIP
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss


@loss(
    "multi_positive",
    "mean over the pairs of one image of -log softmax(s/t)",
    "Yang et al. (UniCL), CVPR 2022",
)
class MultiPositiveInfoNCE(ScaledLoss):
    """The cross-entropy of an anchor's softmax and a target spread evenly over all pairs of its image.

    Equation, for anchor V_i, with P(i) the pairs that show the image of pair i, including pair i itself:

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

    mask_same_image = False  # they stay in the denominator

    @property
    def needs(self) -> dict[str, Constants]:
        return {"log_sum_exp": self.constants[:1], "positive_mean": ()}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        """`InfoNCE` of an anchor's own pair, plus how much lower the other pairs of its image score."""
        own = -logsigmoid(self.logits(anchors.positive) - anchors["log_sum_exp"])
        less = self.logits(anchors.positive - anchors["positive_mean"])
        return torch.where(anchors.num_negatives > 0, own + less, 0.0)

    def plateau(self, batch: int) -> float | None:
        """log B, whatever the number of positives."""
        return math.log(batch)


@loss(
    "siglip_multi",
    "sum over the pairs of one image of softplus(-s/t - bias) + sum_n softplus(s_n/t + bias)",
    "Xiao et al. (FLAIR), CVPR 2025",
    shift_invariant=False,
)
class MultiPositiveSigLIP(SigLIP):
    """`SigLIP` in which every pair of an image and one of its own captions is a positive.

    Equation, with z_ij = 1 if pairs i and j show one image and -1 otherwise:

        (1 / B) sum_i sum_j -log sigmoid( z_ij (s(V_i, T_j) / temperature + bias) )

    It needs `image_ids`; without them it is `SigLIP`. An anchor without negatives counts as 0.

    Args:
        temperature, bias, learn, reduction: see `SigLIP`.

    References:
        Xiao et al., FLAIR: VLM with Fine-grained Language-informed Image Representations, CVPR 2025 (its L^mps).

    Relations:
        `SigLIP` leaves out the other captions of an image. FLAIR has K captions per image, each image once,
        and divides by the number of texts; here an image is a row for each of its captions, so that the mean
        is K times theirs. Their second loss, on image embeddings conditioned on each text, belongs to the
        model.

    Example:
        >>> loss = MultiPositiveSigLIP()(image_emb @ text_emb.T, image_ids=image_ids)
    """

    mask_same_image = False  # they stay in the sum, and -log sigmoid(x) = -log sigmoid(-x) - x

    @property
    def needs(self) -> dict[str, Constants]:
        return {"softplus_sum": self.constants, "positive_mean": ()}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        """`SigLIP` with the other captions as negatives, corrected by how much a positive costs less."""
        positives = anchors.num_negatives.shape[0] - anchors.num_negatives
        others = positives * self.logits(anchors["positive_mean"]) - self.logits(anchors.positive)
        return super().anchor_loss(anchors) - torch.where(anchors.num_negatives > 0, others, 0.0)
