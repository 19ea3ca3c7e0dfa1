"""selhn: image-text matching with selectively hard negative mining.

Names are loaded when first used, so `import selhn` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from selhn.base.names import HIGHER, NAMED_LIBRARIES, NAMED_MODELS, NAMED_TOWERS
from selhn.base.version import __version__

NAMED_MODELS["ready"] = "selhn.pictures.ready:load_ready_model"
NAMED_TOWERS["ready"] = "selhn.towers.ready:open_ready"
NAMED_LIBRARIES |= dict.fromkeys(("transformers", "open_clip"), "selhn.pictures.two_towers:load_two_towers")
HIGHER["model"] = "selhn.export.matcher_towers:open_model"
HIGHER["model in a file"] = "selhn.export.matcher_towers:open_model_named_in_file"
HIGHER["pictures"] = "selhn.pictures:Library"

_HOME = {
    "Index": "selhn.search",
    "Metrics": "selhn.eval",
    "TripletSelHN": "selhn.losses",
    "Vocabulary": "selhn.text",
    "adapt": "selhn.models",
    "create_loss": "selhn.losses",
    "create_model": "selhn.models",
    "evaluate": "selhn.eval",
    "list_losses": "selhn.losses",
    "list_models": "selhn.models",
    "load_data": "selhn.data",
    "load_model": "selhn.models",
    "open_towers": "selhn.towers",
    "recall": "selhn.eval",
    "towers_of": "selhn.export",
    "train": "selhn.training",
}

__all__ = [
    "Index",
    "Metrics",
    "TripletSelHN",
    "Vocabulary",
    "__version__",
    "adapt",
    "create_loss",
    "create_model",
    "evaluate",
    "list_losses",
    "list_models",
    "load_data",
    "load_model",
    "open_towers",
    "recall",
    "towers_of",
    "train",
]

if TYPE_CHECKING:
    from selhn.data import load_data
    from selhn.eval import Metrics, evaluate, recall
    from selhn.export import towers_of
    from selhn.losses import TripletSelHN, create_loss, list_losses
    from selhn.models import adapt, create_model, list_models, load_model
    from selhn.search import Index
    from selhn.text import Vocabulary
    from selhn.towers import open_towers
    from selhn.training.loop import train


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'selhn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
