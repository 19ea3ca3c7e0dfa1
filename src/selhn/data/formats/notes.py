"""What a reader notes: what it understood, what may surprise, and every problem, not only the first."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from selhn.base.errors import SelhnError
from selhn.data.splits import Split


class Problems(SelhnError):
    """Several problems at once, one per line."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass
class Notes:
    """The notes of one reading.

    Readers simply raise. `collecting` writes a problem down instead, around what the rest does not depend on: one
    split of three, the names or boxes of a split. Who loads data calls `raise_problems` at the end.
    """

    lines: list[str] = field(default_factory=list)
    """What was found."""
    warnings: list[str] = field(default_factory=list)
    """What works but may surprise."""
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Note the problems that stop the block, and continue after it."""
        try:
            yield
        except Problems as several:
            self.problems += several.problems
        except SelhnError as problem:
            self.problems.append(str(problem))
        except OSError as problem:
            self.problems.append(f"cannot read {problem.filename}: {problem.strerror}; check its permissions and disk")

    def raise_problems(self) -> None:
        """Raise what was noted, if anything was."""
        if self.problems:
            raise Problems(self.problems)


@dataclass(frozen=True)
class Opened:
    """What a reader found: the name of the data, and the splits that could be read."""

    name: str
    splits: dict[str, Split]


def each(*steps: Callable[[], Any]) -> list[Any]:
    """What each step returns; if some fail, the problems of all."""
    notes, found = Notes(), []
    for step in steps:
        with notes.collecting():
            found.append(step())
    notes.raise_problems()
    return found
