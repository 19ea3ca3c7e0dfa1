"""Opening a model by the name of a folder, of the shipped model, or of another library's."""

import inspect
from pathlib import Path
from typing import get_args

from selhn.base.errors import Damaged, NotFound
from selhn.base.names import NAMED_LIBRARIES, NAMED_MODELS, named_object
from selhn.base.tensor_files import built_with, read_tensors
from selhn.models.matcher import AbstractMatcher
from selhn.models.saved import WEIGHTS_FILE, find_folder, read_model_config
from selhn.models.table import MODELS, create_model
from selhn.text import has_tokenizer, load_tokenizer


def load_model_named_in_file(name: object) -> AbstractMatcher | None:
    """The model that a file names, if it is on this machine (no download); None for other names."""
    return _load_named(name, local_only=True) if isinstance(name, str) else None


def _load_named(name: str, **how: bool) -> AbstractMatcher | None:
    if name in NAMED_MODELS:
        return named_object(NAMED_MODELS[name])()
    library, colon, model = name.partition(":")
    known = library in NAMED_LIBRARIES and colon and model
    return named_object(NAMED_LIBRARIES[library])(name, **how) if known else None


def load_model(path: Path | str) -> AbstractMatcher:
    """A model in evaluation mode, on the CPU.

    Args:
        path: a folder that `model.save` wrote, a run (its best epoch is loaded), "ready", the shipped model, or both
            towers of another library, "transformers:NAME", which that library may download.
    """
    if not Path(path).exists() and (named := _load_named(str(path))) is not None:
        return named
    folder = find_folder(Path(path))
    config = read_model_config(folder)
    if config["name"] not in MODELS:
        raise NotFound(
            f"{folder} holds the model {config['name']!r}, which nothing has registered: "
            "first import the package that calls register_model for it, or install a newer selhn"
        )
    settings = dict(config["settings"])
    for key, parameter in inspect.signature(MODELS[config["name"]].build).parameters.items():
        if isinstance(settings.get(key), str) and Path in (
            parameter.annotation,
            *get_args(parameter.annotation),
        ):
            raise Damaged(
                f"{folder}: {key} in config.json is the path {settings[key]!r}, and a saved model has to hold all it "
                f"needs: build it with create_model({config['name']!r}, {key}=...), load its weights, save it again"
            )
    if has_tokenizer(folder):
        settings["tokenizer"] = load_tokenizer(folder)
    weights = read_tensors(folder / WEIGHTS_FILE)
    return built_with(lambda: create_model(config["name"], **settings), weights, str(folder)).eval()
