"""Names that people type: what to say to one that is not known."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known name nearest to a word, as a question, or all known names."""
    known = list(known)
    close = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"


def require_settings(owner: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that a class or function does not have."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    for name in settings:
        if name not in known:
            raise ValueError(f"{owner} has no setting {name!r}: {did_you_mean(name, known)}")
