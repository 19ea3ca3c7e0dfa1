"""Models: images and texts in, `scores[image, text]` out. Each is one row of `MODELS`."""

from importlib import import_module

from selhn.models.cross_attention import CrossAttention
from selhn.models.foreign import adapt
from selhn.models.loading import load_model
from selhn.models.loading import load_model_named_in_file as load_model_named_in_file
from selhn.models.matcher import AbstractMatcher, encode_batch, in_eval_mode
from selhn.models.table import MODELS, ModelEntry, create_model, list_models, register_model
from selhn.models.twins import Twins
from selhn.models.vse import VSE
from selhn.models.vsepp import VSEpp

__all__ = ["MODELS", "VSE", "AbstractMatcher", "CrossAttention", "ModelEntry", "Twins", "VSEpp"]
__all__ += [
    "adapt",
    "create_model",
    "encode_batch",
    "in_eval_mode",
    "list_models",
    "load_model",
    "register_model",
]

# Their builders become rows, in this order.
for _file in (
    "vse", "vsepp", "vse_infty", "devise", "vsrn", "cvse", "pixels", "scan", "bfan", "sgraf", "camp", "imram", "naaf",
    "cmcan", "gsmn",
):  # fmt: skip
    import_module(f"selhn.models.{_file}")
