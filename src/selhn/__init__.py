"""selhn: image-text matching with selectively hard negative mining.

Names are loaded when first used, so that `import selhn` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "Metrics": "selhn.eval",
    "TripletSelHN": "selhn.losses",
    "create_loss": "selhn.losses",
    "list_losses": "selhn.losses",
    "recall": "selhn.eval",
}

__all__ = ["Metrics", "TripletSelHN", "__version__", "create_loss", "list_losses", "recall"]

if TYPE_CHECKING:
    from selhn.eval import Metrics, recall
    from selhn.losses import TripletSelHN, create_loss, list_losses


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'selhn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
