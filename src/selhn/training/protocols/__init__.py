"""How losses are trained that need more than the scores of a batch. One line of `PROTOCOLS` each."""

from collections.abc import Mapping

from selhn.base.errors import SelhnError
from selhn.losses import AOQ, NCR, AbstractLoss, MetaSPN
from selhn.training.protocols.base import Protocol
from selhn.training.protocols.co_divide import CoDivide
from selhn.training.protocols.meta_step import MetaStep
from selhn.training.protocols.offline import OfflineNegatives
from selhn.training.protocols.self_distillation import SelfDistillation

__all__ = [
    "PROTOCOLS",
    "CoDivide",
    "MetaStep",
    "OfflineNegatives",
    "Protocol",
    "SelfDistillation",
    "protocol_of",
]

PROTOCOLS: Mapping[type[AbstractLoss], type[Protocol]] = {
    NCR: CoDivide,
    AOQ: OfflineNegatives,
    MetaSPN: MetaStep,
}
"""All other losses are trained the ordinary way."""


def protocol_of(loss: type, distil: float = 0.0) -> type[Protocol]:
    """How losses of this class are trained; with `distil`, the averaged model teaches beside the loss."""
    protocol = next((protocol for known, protocol in PROTOCOLS.items() if issubclass(loss, known)), Protocol)
    if not distil:
        return protocol
    if protocol is not Protocol:
        raise SelhnError(
            f"distil={distil:g} is for ordinary losses, and {loss.__name__} is trained by "
            f"{protocol.__name__}: use another loss, or distil=0"
        )
    return SelfDistillation
