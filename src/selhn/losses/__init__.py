"""Losses: `scores[image, text]` in, a scalar out. One file per family, one row of `LOSSES` per loss."""

from selhn.losses.base import AbstractLoss, Learns, Scheduled, TakesGiven, hinge, loss_settings
from selhn.losses.ranks import across_ranks
from selhn.losses.statistics import STATISTICS, AnchorStatistics, Statistic
from selhn.losses.table import LOSSES, LossEntry, create_loss, list_losses, register_loss

# Each class adds its row to `LOSSES`: the rows are in the order of these lines.
# isort: off
from selhn.losses.triplet import Triplet as Triplet
from selhn.losses.hardest import TripletHN as TripletHN
from selhn.losses.selhn import TripletSelHN as TripletSelHN
from selhn.losses.semihard import TripletSHN as TripletSHN
from selhn.losses.sct import SCT as SCT
from selhn.losses.warmup import TripletWarmUp as TripletWarmUp
from selhn.losses.infonce import InfoNCE as InfoNCE
from selhn.losses.siglip import SigLIP as SigLIP
from selhn.losses.multi_positive import MultiPositiveInfoNCE as MultiPositiveInfoNCE
from selhn.losses.multi_positive import MultiPositiveSigLIP as MultiPositiveSigLIP
from selhn.losses.distance import TripletDistance as TripletDistance
from selhn.losses.uto import UTO as UTO
from selhn.losses.tal import TAL as TAL
from selhn.losses.ssp import SSP as SSP
from selhn.losses.bce import BCE as BCE
from selhn.losses.bce import BCEMax as BCEMax
from selhn.losses.ncr import NCR as NCR
from selhn.losses.ncr import PairLabels as PairLabels
from selhn.losses.aoq import AOQ as AOQ
from selhn.losses.aoq import OfflineScores as OfflineScores
from selhn.losses.meta_spn import MetaSPN as MetaSPN

# isort: on

__all__ = [entry.loss.__name__ for entry in LOSSES.values()]
__all__ += [
    "LOSSES",
    "STATISTICS",
    "AbstractLoss",
    "AnchorStatistics",
    "Learns",
    "LossEntry",
    "OfflineScores",
]
__all__ += ["PairLabels", "Scheduled", "Statistic", "TakesGiven", "across_ranks", "create_loss", "hinge"]
__all__ += ["list_losses", "loss_settings", "register_loss"]
