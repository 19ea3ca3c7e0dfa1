"""Losses: `scores[image, text]` in, a scalar out. One file per family, one row of `LOSSES` per loss."""

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean, require_settings
from selhn.losses.aoq import AOQ as AOQ
from selhn.losses.aoq import OfflineScores
from selhn.losses.base import AbstractLoss, Learns, Scheduled, TakesGiven, hinge, loss_settings
from selhn.losses.bce import BCE as BCE
from selhn.losses.bce import BCEMax as BCEMax
from selhn.losses.distance import TripletDistance as TripletDistance
from selhn.losses.hardest import TripletHN as TripletHN
from selhn.losses.infonce import InfoNCE as InfoNCE
from selhn.losses.meta_spn import MetaSPN as MetaSPN
from selhn.losses.multi_positive import MultiPositiveInfoNCE as MultiPositiveInfoNCE
from selhn.losses.multi_positive import MultiPositiveSigLIP as MultiPositiveSigLIP
from selhn.losses.ncr import NCR as NCR
from selhn.losses.ncr import PairLabels
from selhn.losses.ranks import across_ranks
from selhn.losses.sct import SCT as SCT
from selhn.losses.selhn import TripletSelHN as TripletSelHN
from selhn.losses.semihard import TripletSHN as TripletSHN
from selhn.losses.siglip import SigLIP as SigLIP
from selhn.losses.ssp import SSP as SSP
from selhn.losses.statistics import STATISTICS, AnchorStatistics, Statistic
from selhn.losses.tal import TAL as TAL
from selhn.losses.triplet import Triplet as Triplet
from selhn.losses.uto import UTO as UTO
from selhn.losses.warmup import TripletWarmUp as TripletWarmUp


@dataclass(frozen=True)
class LossEntry:
    """A row of the table of losses."""

    loss: type[AbstractLoss]
    equation: str = ""
    paper: str = ""
    url: str = ""
    shift_invariant: bool = True
    """Whether the loss stays the same if a constant is added to all scores."""


LOSSES: dict[str, LossEntry] = {
    "triplet": LossEntry(Triplet, "sum_n [s_n - s_p + margin]+", "Schroff et al., CVPR 2015"),
    "hn": LossEntry(TripletHN, "[max_n s_n - s_p + margin]+", "Faghri et al. (VSE++), BMVC 2018"),
    "selhn": LossEntry(
        TripletSelHN, "hn if |max_n s_n - s_p| > epsilon else mean_n [s_n - s_p + margin]+", "Li et al., 2023"
    ),
    "shn": LossEntry(TripletSHN, "[max_{s_n < s_p} s_n - s_p + margin]+", "Schroff et al., CVPR 2015"),
    "sct": LossEntry(
        SCT, "hn if max_n s_n < s_p else max_n s_n", "Xuan et al., ECCV 2020", shift_invariant=False
    ),
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
    ),
    "multi_positive": LossEntry(
        MultiPositiveInfoNCE,
        "mean over the pairs of one image of -log softmax(s/t)",
        "Yang et al. (UniCL), CVPR 2022",
    ),
    "siglip_multi": LossEntry(
        MultiPositiveSigLIP,
        "sum over the pairs of one image of softplus(-s/t - bias) + sum_n softplus(s_n/t + bias)",
        "Xiao et al. (FLAIR), CVPR 2025",
        shift_invariant=False,
    ),
    "distance": LossEntry(
        TripletDistance,
        "sum_n w_n [s_n - s_p + margin]+ / sum_n w_n, w_n = how rare the distance is",
        "Wu et al., ICCV 2017; HREM, LAPS, D2S-VSE",
        shift_invariant=False,
    ),
    "uto": LossEntry(
        UTO,
        "t log(1 + sum_n e^((s_n - threshold)/t)) - log(1 + [s_p]+)/2",
        "Zhang et al. (USER), TIP 2024",
        shift_invariant=False,
    ),
    "tal": LossEntry(TAL, "[t log sum_n e^(s_n/t) - s_p + margin]+", "Qin et al. (RDE), CVPR 2024"),
    "ssp": LossEntry(
        SSP,
        "[G+(s_p)]+ + [G-(max_n s_n)]+ if max_n s_n > s_p - margin else 0",
        "Wei et al., CVPR 2020",
        shift_invariant=False,
    ),
    "bce_all": LossEntry(
        BCE, "-log s_p - sum_n log(1 - s_n) / B", "Wang et al. (CAMP), ICCV 2019", shift_invariant=False
    ),
    "bce_max": LossEntry(
        BCEMax, "-log s_p - log(1 - max_n s_n)", "Wang et al. (CAMP), ICCV 2019", shift_invariant=False
    ),
    "ncr": LossEntry(NCR, "[max_n s_n - s_p + margin m(label)]+", "Huang et al. (NCR), NeurIPS 2021"),
    "aoq": LossEntry(
        AOQ, "w [max_n s_n - s_p + margin]+ + two of [s_offline - s_p]+", "Chen et al., ECCV 2020"
    ),
    "meta_spn": LossEntry(
        MetaSPN,
        "w(s_p, max_n s_n) [max_n s_n - s_p + margin]+",
        "after Wei et al., ACM Multimedia 2021 (experimental)",
    ),
}

__all__ = [entry.loss.__name__ for entry in LOSSES.values()]
__all__ += ["AbstractLoss", "AnchorStatistics", "Learns", "LossEntry", "OfflineScores", "PairLabels"]
__all__ += [
    "Scheduled",
    "Statistic",
    "STATISTICS",
    "TakesGiven",
    "LOSSES",
    "across_ranks",
    "create_loss",
    "hinge",
    "list_losses",
]
__all__ += ["loss_settings", "register_loss"]


def register_loss(
    name: str,
    loss: type[AbstractLoss],
    *,
    equation: str = "",
    paper: str = "",
    url: str = "",
    shift_invariant: bool = True,
) -> None:
    """Add a loss of your own package to `LOSSES`, so that it can be created, listed and trained by name."""
    if not isinstance(name, str) or not callable(loss) or isinstance(loss, AbstractLoss):
        raise SelhnError(
            f"register_loss takes a name and a class that makes the loss, got {name!r} and {loss!r}: "
            'register_loss("squared", SquaredHinge)'
        )
    if name in LOSSES:
        raise SelhnError(f"there is already a loss called {name!r}: register yours under another name")
    LOSSES[name] = LossEntry(loss, equation, paper, url, shift_invariant)


def list_losses(pattern: str = "*") -> list[str]:
    """Names in `LOSSES` that match a shell pattern, in the order of the table."""
    return [name for name in LOSSES if fnmatch(name, pattern)]


def create_loss(name: str, **settings: Any) -> AbstractLoss:
    """The loss of that name: `create_loss("selhn", epsilon=0.02)` is `TripletSelHN(epsilon=0.02)`."""
    if not isinstance(name, str):
        raise SelhnError(f'create_loss takes the name of a loss, such as "selhn", got {name!r}')
    if name not in LOSSES:
        raise NotFound(f"unknown loss {name!r}: {did_you_mean(name, LOSSES)}")
    return LOSSES[name].loss(**require_settings(name, LOSSES[name].loss, settings))
