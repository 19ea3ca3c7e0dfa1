"""A model to search your own pictures with, and the features it takes."""

from selhn.pictures.ready.loader import load_extractor, load_ready_model, load_ready_projection

__all__ = ["load_extractor", "load_ready_model", "load_ready_projection"]
