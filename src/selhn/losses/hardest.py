"""The triplet loss on the hardest negative: Faghri et al., VSE++, BMVC 2018."""

from typing import Any

from selhn.base.types import Reduction, Variant
from selhn.losses.one_negative import VariantLoss


class TripletHN(VariantLoss):
    """T-HN: the hinge of the negative that scores highest.

    Equation 3 of the SelHN paper, for anchor V_i:  [max_{j != i} s(V_i, T_j) - s(V_i, T_i) + margin]+

    Args:
        margin, variant, temperature, reduction: see `VariantLoss`.

    References:
        Faghri et al., VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
        The "nca" form: Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        Early in training all embeddings can collapse: then the loss stays at `margin` per anchor, that is at
        2 * B * margin when summed. `TripletSelHN` avoids this.

    Example:
        >>> loss = TripletHN()(image_emb @ text_emb.T)
    """

    needs = ("hardest",)

    @classmethod
    def official(cls, variant: Variant = "hinge", **settings: Any) -> "TripletHN":
        """As in public code: VSE++ with `--max_violation` sums over both directions; "nca" takes the mean."""
        reduction: Reduction = "sum" if variant == "hinge" else "mean"
        return cls(variant=variant, **{"reduction": reduction, **settings})
