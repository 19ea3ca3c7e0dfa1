"""How losses are trained that need more than the scores of a batch. One line of `PROTOCOLS` each."""

from collections.abc import Mapping

from selhn.losses import AOQ, NCR, AbstractLoss, MetaSPN
from selhn.training.protocols.base import Protocol
from selhn.training.protocols.co_divide import CoDivide
from selhn.training.protocols.meta_step import MetaStep
from selhn.training.protocols.offline import OfflineNegatives

__all__ = ["PROTOCOLS", "CoDivide", "MetaStep", "OfflineNegatives", "Protocol", "protocol_of"]

PROTOCOLS: Mapping[type[AbstractLoss], type[Protocol]] = {
    NCR: CoDivide,
    AOQ: OfflineNegatives,
    MetaSPN: MetaStep,
}
"""All other losses are trained the ordinary way."""


def protocol_of(loss: type) -> type[Protocol]:
    """How losses of this class are trained."""
    return next((protocol for known, protocol in PROTOCOLS.items() if issubclass(loss, known)), Protocol)
