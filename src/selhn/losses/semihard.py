"""The triplet loss on semi-hard negatives: Schroff et al., CVPR 2015, as the SelHN paper states it."""

from selhn.losses.hardest import VariantLoss
from selhn.losses.table import loss


@loss("shn", "[max_{s_n < s_p} s_n - s_p + margin]+", "Schroff et al., CVPR 2015")
class TripletSHN(VariantLoss):
    """T-SHN: the hinge of the hardest negative that scores below the positive.

    Equations 13 and 14 of the SelHN paper, for anchor V_i:
    [max {s(V_i, T_j) : s(V_i, T_j) < s(V_i, T_i)} - s(V_i, T_i) + margin]+, and 0 if no negative is below.

    Args:
        margin, temperature, reduction: see `VariantLoss`.
        variant: see `VariantLoss`; in "nca" a negative equal to the positive may be taken.

    References:
        Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.
        The "nca" form: Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        FaceNet samples among the negatives inside the margin; this takes the hardest of them. `TripletHN` is
        the same loss without the condition, on all negatives.

    Example:
        >>> loss = TripletSHN()(image_emb @ text_emb.T)
    """

    @property
    def needs(self) -> tuple[str, ...]:
        # Official: the "nca" code keeps a negative that ties with the positive. Paper: strictly below.
        return ("hardest_below",) if self.variant == "hinge" else ("hardest_up_to",)
