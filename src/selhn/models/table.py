"""The table of models: a builder becomes a row of `MODELS` by `@model`, or from outside by `register_model`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean, require_settings
from selhn.models.builders import MatcherT, by_name
from selhn.models.layouts import AuthorsLayout
from selhn.models.matcher import AbstractMatcher
from selhn.models.twins import Twins

SIZES = ("dim", "vocab_size", "num_regions", "heads", "neighbours")
"""Endings of the settings that must be at least 1."""


class Paper(NamedTuple):
    """Where a model comes from."""

    authors: str
    url: str


@dataclass(frozen=True)
class ModelEntry:
    """A row of the table of models."""

    build: Callable[..., AbstractMatcher]
    family: str
    paper: str
    url: str
    brings_tokenizer: bool = False
    """Whether it comes with its own tokenizer (a BERT does), and so needs no vocabulary."""
    official: AuthorsLayout | None = None
    """How its authors' program stores it, for `load_official`."""


MODELS: dict[str, ModelEntry] = {}


def model(
    paper: Paper,
    family: str = "embedding",
    *,
    brings_tokenizer: bool = False,
    official: AuthorsLayout | None = None,
) -> Callable[[Callable[..., MatcherT]], Callable[..., MatcherT]]:
    """Make a builder the row of `MODELS` that has its name; its first parameter is a group of settings."""

    def add(build: Callable[..., MatcherT]) -> Callable[..., MatcherT]:
        built = by_name(build)
        MODELS[build.__name__] = ModelEntry(built, family, *paper, brings_tokenizer, official)
        return built

    return add


def register_model(
    name: str,
    build: Callable[..., AbstractMatcher],
    *,
    family: str = "embedding",
    paper: str = "",
    url: str = "",
    brings_tokenizer: bool = False,
) -> None:
    """Add a model of your own to `MODELS`: it can then be created, listed, trained and loaded by name.

    The parameters of `build` are the settings of the model; those with a default are optional.
    Import your package before loading such a model.
    """
    if not isinstance(name, str) or not callable(build):
        raise SelhnError(
            f"register_model takes a name and a function or class that makes the model, got {name!r} and {build!r}: "
            'register_model("bag", Bag)'
        )
    if name in MODELS:
        raise SelhnError(f"there is already a model called {name!r}: register yours under another name")
    MODELS[name] = ModelEntry(build, family, paper, url, brings_tokenizer)


def list_models(pattern: str = "*") -> list[str]:
    """Names in `MODELS` that match a shell pattern, in the order of the table."""
    return [name for name in MODELS if fnmatch(name, pattern)]


def create_model(name: str, *, networks: int = 1, **settings: Any) -> AbstractMatcher:
    """The model of that name with random weights: `create_model("rvse", tokenizer=vocabulary, dim=512)`.

    `networks=2` makes two networks with different weights in one model (see `Twins`).
    """
    if not isinstance(name, str):
        raise SelhnError(f'create_model takes the name of a model, such as "rvse", got {name!r}')
    if name not in MODELS:
        raise NotFound(f"unknown model {name!r}: {did_you_mean(name, MODELS)}")
    if networks not in (1, 2):
        raise SelhnError(f"networks of {name} is {networks!r}: choose 1, or 2 that teach each other")
    parameters = inspect.signature(MODELS[name].build).parameters
    settings = require_settings(name, MODELS[name].build, settings)
    for key, value in settings.items():
        if key.endswith(SIZES) and isinstance(value, int) and value < 1:
            raise SelhnError(f"{key} of {name} is {value}: choose at least 1")
    model = MODELS[name].build(**settings)
    if networks == 2:
        model = Twins(model, MODELS[name].build(**settings))
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    model.name = name
    resolved = {key: value for key, value in model.settings.items() if key in defaults or key == "networks"}
    model.settings = {**defaults, **settings, **resolved}
    model.settings.pop("tokenizer", None)
    return model
