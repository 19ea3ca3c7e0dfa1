"""Losses: `scores[image, text]` in, a scalar out. One paper, one file, one line of `LOSSES`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from selhn.base.errors import NotFound
from selhn.base.names import did_you_mean, require_settings
from selhn.losses.aoq import AOQ, OfflineScores
from selhn.losses.base import AbstractLoss, loss_settings
from selhn.losses.hardest import TripletHN
from selhn.losses.infonce import InfoNCE
from selhn.losses.meta_spn import MetaSPN
from selhn.losses.multi_positive import MultiPositiveInfoNCE
from selhn.losses.ncr import NCR, PairLabels
from selhn.losses.roles import Learns, Scheduled, TakesGiven
from selhn.losses.sct import SCT
from selhn.losses.selhn import TripletSelHN
from selhn.losses.semihard import TripletSHN
from selhn.losses.siglip import SigLIP
from selhn.losses.ssp import SSP
from selhn.losses.tal import TAL
from selhn.losses.triplet import Triplet
from selhn.losses.warmup import TripletWarmUp

__all__ = [
    "AOQ",
    "LOSSES",
    "NCR",
    "SCT",
    "SSP",
    "TAL",
    "AbstractLoss",
    "InfoNCE",
    "Learns",
    "LossEntry",
    "MetaSPN",
    "MultiPositiveInfoNCE",
    "OfflineScores",
    "PairLabels",
    "Scheduled",
    "SigLIP",
    "TakesGiven",
    "Triplet",
    "TripletHN",
    "TripletSHN",
    "TripletSelHN",
    "TripletWarmUp",
    "create_loss",
    "list_losses",
    "loss_settings",
]


@dataclass(frozen=True)
class LossEntry:
    """A line of the table of losses."""

    loss: type[AbstractLoss]
    equation: str
    paper: str
    shift_invariant: bool = True
    """Whether adding a constant to all scores leaves it as it is."""
    networks: int = 1
    """How many networks its authors train together."""
    run_settings: Mapping[str, Any] = field(default_factory=dict)
    """What a whole run takes where nothing else is said, and a single call does not."""


LOSSES: Mapping[str, LossEntry] = {
    "triplet": LossEntry(Triplet, "sum_n [s_n - s_p + margin]+", "Schroff et al., CVPR 2015"),
    "hn": LossEntry(TripletHN, "[max_n s_n - s_p + margin]+", "Faghri et al. (VSE++), BMVC 2018"),
    "selhn": LossEntry(
        TripletSelHN, "hn if |max_n s_n - s_p| > epsilon else mean_n [s_n - s_p + margin]+", "Li et al., 2023"
    ),
    "shn": LossEntry(TripletSHN, "[max_{s_n < s_p} s_n - s_p + margin]+", "Schroff et al., CVPR 2015"),
    "sct": LossEntry(SCT, "hn if max_n s_n < s_p else max_n s_n", "Xuan et al., ECCV 2020", shift_invariant=False),
    "warmup": LossEntry(
        TripletWarmUp, "triplet for the first epochs, then hn", "Chen et al. (VSE-infinity), CVPR 2021"
    ),
    "infonce": LossEntry(
        InfoNCE, "-log(e^(s_p/t) / (e^(s_p/t) + sum_n e^(s_n/t)))", "Radford et al. (CLIP), ICML 2021"
    ),
    "siglip": LossEntry(
        SigLIP,
        "softplus(-s_p/t - bias) + sum_n softplus(s_n/t + bias)",
        "Zhai et al. (SigLIP), ICCV 2023",
        shift_invariant=False,
        run_settings={"learn": True},
    ),
    "multi_positive": LossEntry(
        MultiPositiveInfoNCE, "mean over the pairs of one image of -log softmax(s/t)", "Yang et al. (UniCL), CVPR 2022"
    ),
    "tal": LossEntry(TAL, "[t log sum_n e^(s_n/t) - s_p + margin]+", "Qin et al. (RDE), CVPR 2024"),
    "ssp": LossEntry(
        SSP,
        "[G+(s_p)]+ + [G-(max_n s_n)]+ if max_n s_n > s_p - margin else 0",
        "Wei et al., CVPR 2020",
        shift_invariant=False,
    ),
    "ncr": LossEntry(
        NCR,
        "[max_n s_n - s_p + margin m(label)]+",
        "Huang et al. (NCR), NeurIPS 2021",
        networks=2,
        run_settings={"warmup_epochs": 5},
    ),
    "aoq": LossEntry(AOQ, "w [max_n s_n - s_p + margin]+ + two of [s_offline - s_p]+", "Chen et al., ECCV 2020"),
    "meta_spn": LossEntry(
        MetaSPN, "w(s_p, max_n s_n) [max_n s_n - s_p + margin]+", "after Wei et al., ACM Multimedia 2021 (experimental)"
    ),
}


def list_losses(pattern: str = "*") -> list[str]:
    """Names in `LOSSES` that match a shell pattern, in the order of the table."""
    return [name for name in LOSSES if fnmatch(name, pattern)]


def create_loss(name: str, **settings: Any) -> AbstractLoss:
    """The loss of that name: `create_loss("selhn", epsilon=0.02)` is `TripletSelHN(epsilon=0.02)`."""
    if name not in LOSSES:
        raise NotFound(f"unknown loss {name!r}: {did_you_mean(name, LOSSES)}")
    require_settings(name, LOSSES[name].loss, settings)
    return LOSSES[name].loss(**settings)
