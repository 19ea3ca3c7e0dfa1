"""Names and settings that people type: how names are printed, messages for unknown names and wrong values."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from selhn.base.errors import NotFound, SelhnError


def printable(text: object) -> str:
    """A file name or other text of somebody else as part of one line: line breaks and the like are escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(text)
    )


NAMED_MODELS: dict[str, str] = {}
"""Models that `load_model` takes by name, each with its loader as "module:function".

`selhn/__init__.py` fills it, so that lower packages need not import the one that ships the model.
"""

NAMED_TOWERS: dict[str, str] = {}
"""Towers that `open_towers` takes by name, in the same form; the loader gets the name."""

NAMED_LIBRARIES: dict[str, str] = {}
"""Other libraries whose models `load_model` takes as LIBRARY:NAME, in the same form."""

HIGHER: dict[str, str] = {}
"""What lower packages call of higher ones, in the same form: "pictures" turns a picture into a vector, and draws items;
"model" makes towers of what `load_model` takes, "model in a file" of a name in a file, which is never downloaded."""


def named_object(place: str) -> Any:
    """The object that "module:name" refers to."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


@cache
def load_plugins() -> None:
    """Import the "selhn.plugins" entry points of other packages, which register models and losses."""
    for entry in entry_points(group="selhn.plugins"):
        entry.load()


_LIST = (lambda value: isinstance(value, tuple | list), "a list such as [3, 6]")
KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    str: (lambda value: isinstance(value, str), "a word"),
    Path: (lambda value: isinstance(value, str | Path), "a path"),
    tuple: _LIST,
    Sequence: _LIST,
    type(None): (lambda value: value is None, "null"),
}
"""For each type of setting: which values fit, and what to call them in a message."""


def plain(value: Any) -> Any:
    """A number or truth value of NumPy as that of Python, also in a list; everything else unchanged."""
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    scalar = type(value).__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__")
    return value.item() if scalar else value


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """ "did you mean ...?" with the closest known name, or else `otherwise`: by default, all known names."""
    known = list(known)
    close = get_close_matches(word.lower(), known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return otherwise or (f"choose from {', '.join(known)}" if known else "there are none")


def flat(nested: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten to one level; inner names are joined by a dot."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def require_settings(
    owner: str, function: Callable[..., Any], settings: Mapping[str, Any], only_optional: bool = False
) -> dict[str, Any]:
    """The settings, with numbers of NumPy made `plain`.

    Settings that a class or function does not have, and values that its annotations do not allow, are refused. With
    `only_optional`, parameters without a default are not settings: the caller passes them itself.
    """
    settings = {name: plain(value) for name, value in settings.items()}
    known = {name: p for name, p in inspect.signature(function).parameters.items() if name != "self"}
    if only_optional:
        known = {name: p for name, p in known.items() if p.default is not inspect.Parameter.empty}
    for name, value in settings.items():
        if name not in known:
            raise NotFound(f"{owner} has no setting {name!r}: {did_you_mean(name, known)}")
        parameter = known[name]
        kind = parameter.annotation
        if kind is inspect.Parameter.empty:  # then the default tells the type, and None does not
            kind = Any if parameter.default is None else type(parameter.default)
        require_kind(f"{name} of {owner}", value, kind)
    return settings


def require_type(name: str, value: object, kind: type, advice: str) -> None:
    """Refuse an argument that is not an object of a class."""
    if not isinstance(value, kind):
        got = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        if isinstance(value, type):
            got = f"the class {value.__name__} itself"
        raise SelhnError(f"{name} must be of class {kind.__name__}, got {got}: {advice}")


def require_texts(texts: Sequence[str]) -> None:
    """Refuse one string instead of a list, something that is not a string, and an empty sentence."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        found = texts if isinstance(texts, str) else next(text for text in texts if not isinstance(text, str))
        raise SelhnError(
            f"texts must be a list of strings, got {found!r}: for one sentence, write [sentence]"
        )
    empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise SelhnError(f"text {empty} is empty: a sentence needs at least one word")


def require_kind(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that an annotation does not allow; types that are not in `KINDS` allow everything."""
    if not _fits(value, kind):
        raise SelhnError(f"{name} takes {_words(kind)}, got {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin not in KINDS:
        return True
    if not KINDS[origin][0](value):
        return False
    if origin is tuple and parts and parts[-1] is not Ellipsis and len(value) != len(parts):
        return False
    return not parts or all(_fits(item, parts[0]) for item in value)


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (Union, UnionType):
        return " or ".join(_words(part) for part in parts)
    return KINDS[origin][1]
