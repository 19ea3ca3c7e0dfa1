"""The model to search your own pictures with: `selhn.load_model("ready")`."""

from selhn.pictures.ready.loader import load_ready_model

__all__ = ["load_ready_model"]
