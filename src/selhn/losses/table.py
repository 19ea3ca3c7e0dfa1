"""The table of losses: a class becomes a row of `LOSSES` by `@loss`, or from outside by `register_loss`."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean, require_settings
from selhn.losses.base import AbstractLoss, LossT, as_ours


@dataclass(frozen=True)
class LossEntry:
    """A row of the table of losses."""

    loss: type[AbstractLoss]
    equation: str = ""
    paper: str = ""
    url: str = ""
    shift_invariant: bool = True
    """Whether the loss stays the same if a constant is added to all scores."""


LOSSES: dict[str, LossEntry] = {}


def loss(
    name: str, equation: str, paper: str, *, shift_invariant: bool = True
) -> Callable[[type[LossT]], type[LossT]]:
    """Make a class the row of `LOSSES` with that name."""

    def add(made: type[LossT]) -> type[LossT]:
        LOSSES[name] = LossEntry(made, equation, paper, shift_invariant=shift_invariant)
        return made

    return add


def register_loss(
    name: str,
    loss: type[AbstractLoss],
    *,
    equation: str = "",
    paper: str = "",
    url: str = "",
    shift_invariant: bool = True,
) -> None:
    """Add a loss of your own package to `LOSSES`, so that it can be created, listed and trained by name."""
    if not isinstance(name, str) or not callable(loss) or as_ours(loss) is not None:
        raise SelhnError(
            f"register_loss takes a name and a class that makes the loss, got {name!r} and {loss!r}: "
            'register_loss("squared", SquaredHinge)'
        )
    if name in LOSSES:
        raise SelhnError(f"there is already a loss called {name!r}: register yours under another name")
    LOSSES[name] = LossEntry(loss, equation, paper, url, shift_invariant)


def list_losses(pattern: str = "*") -> list[str]:
    """Names in `LOSSES` that match a shell pattern, in the order of the table."""
    return [name for name in LOSSES if fnmatch(name, pattern)]


def create_loss(name: str, **settings: Any) -> AbstractLoss:
    """The loss of that name: `create_loss("selhn", epsilon=0.02)` is `TripletSelHN(epsilon=0.02)`."""
    if not isinstance(name, str):
        raise SelhnError(f'create_loss takes the name of a loss, such as "selhn", got {name!r}')
    if name not in LOSSES:
        raise NotFound(f"unknown loss {name!r}: {did_you_mean(name, LOSSES)}")
    return LOSSES[name].loss(**require_settings(name, LOSSES[name].loss, settings))
