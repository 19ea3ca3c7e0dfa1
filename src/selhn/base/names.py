"""Names that people type: what to say to one that is not known."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from selhn.base.errors import SelhnError

NAMED_MODELS: dict[str, str] = {}
"""Models that `load_model` takes by name, each as "module:function" of what loads it.

`selhn/__init__.py` fills it, so that no room below has to import the one that ships the model.
"""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known name nearest to a word, as a question, or all known names."""
    known = list(known)
    close = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"


def require_settings(owner: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that a class or function does not have, and text or fractions where it wants numbers."""
    known = {name: parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"}
    for name, value in settings.items():
        if name not in known:
            raise SelhnError(f"{owner} has no setting {name!r}: {did_you_mean(name, known)}")
        require_kind(owner, name, value, known[name].default)


def require_kind(owner: str, name: str, value: Any, default: Any) -> None:
    """Refuse a value whose kind is not that of the default: words for numbers, one number for several."""
    wanted = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list such as [3, 6]"}
    kinds: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), tuple: (tuple, list)}
    for kind, words in wanted.items():
        if type(default) is kind:
            fits = isinstance(value, kinds[kind]) and (kind is bool or not isinstance(value, bool))
            if not fits:
                raise SelhnError(f"{name} of {owner} takes {words}, got {value!r}")
