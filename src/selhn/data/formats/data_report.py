"""What a reader finds in a data set, in plain words: what is there, what may surprise, and every problem."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from selhn.base.errors import SelhnError
from selhn.data.splits import Split

Found: TypeAlias = tuple[str, dict[str, Split]]
"""What a reader returns: the name of the data, and the splits that could be read."""


@dataclass
class Report:
    """What is in a data set, in plain words.

    Readers simply raise. `collecting` notes a problem instead, around what the rest does not depend on: one
    split of three, the names or boxes of a split. Loading data ends with `raise_problems`.
    """

    lines: list[str] = field(default_factory=list)
    """What was found."""
    warnings: list[str] = field(default_factory=list)
    """What works but may surprise."""
    problems: list[str] = field(default_factory=list)
    """What must be fixed before the data can be used."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        verdict = "This data can be used." if self.ok else f"Problems to fix: {len(self.problems)}."
        marked = [f"warning: {line}" for line in self.warnings] + [
            f"problem: {line}" for line in self.problems
        ]
        return "\n".join([*self.lines, *marked, verdict])

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Note the problems that stop the block, and continue after it."""
        try:
            yield
        except SelhnError as problems:
            self.problems += str(problems).split("\n")
        except OSError as problem:
            self.problems.append(
                f"cannot read {problem.filename} ({problem.strerror}): check its rights and disk"
            )

    def raise_problems(self) -> None:
        """Raise all problems as one error, one per line."""
        if self.problems:
            raise SelhnError("\n".join(self.problems))


def each(*steps: Callable[[], Any]) -> list[Any]:
    """What each step returns; if some fail, the problems of all."""
    report, found = Report(), []
    for step in steps:
        with report.collecting():
            found.append(step())
    report.raise_problems()
    return found
