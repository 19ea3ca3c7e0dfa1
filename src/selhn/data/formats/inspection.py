"""What a reader finds on its way: to load, the first problem is an error; to check, all are written down."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from selhn.base.errors import SelhnError
from selhn.data.splits import Split

Found = TypeVar("Found")


@dataclass(frozen=True)
class Report:
    """What lies in a folder, in plain words."""

    lines: tuple[str, ...] = ()
    """What is there."""
    warnings: tuple[str, ...] = ()
    """What works and may surprise."""
    problems: tuple[str, ...] = ()
    """What must be mended before the data can be used."""

    @property
    def ok(self) -> bool:
        """Whether the data can be used."""
        return not self.problems

    def __str__(self) -> str:
        verdict = "This data can be used." if self.ok else f"Problems to mend: {len(self.problems)}."
        marked = [f"warning: {line}" for line in self.warnings] + [f"problem: {line}" for line in self.problems]
        return "\n".join([*self.lines, *marked, verdict])


@dataclass
class Inspection:
    """The notes of one reading.

    Readers are written once: they `attempt` each step, `say` what they understood and `warn` of what may surprise. A
    strict reading stops at the first problem; one that is not strict goes on with None in place of what failed.
    """

    strict: bool = True
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    where: dict[str, Callable[[int], str]] = field(default_factory=dict)
    """For each split, the place of an image's features: file and row."""

    def attempt(self, step: Callable[..., Found], *args: Any, **options: Any) -> Found | None:
        """What the step returns, or None once its problem is written down."""
        try:
            return step(*args, **options)
        except Exception as problem:
            if self.strict:
                raise
            # Our own sentences are ValueErrors and stand for themselves; anything else is named, never passed on.
            known = type(problem) is ValueError
            self.problems.append(str(problem) if known else f"{type(problem).__name__} while reading: {problem}")
            return None

    def refuse(self, sentence: str) -> None:
        """Note a problem, or stop at it."""
        if self.strict:
            raise SelhnError(sentence)
        self.problems.append(sentence)

    def say(self, line: str) -> None:
        """Note what is there."""
        self.lines.append(line)

    def warn(self, line: str) -> None:
        """Note what may surprise."""
        self.warnings.append(line)

    def report(self) -> Report:
        """The notes, frozen."""
        return Report(tuple(self.lines), tuple(self.warnings), tuple(self.problems))


@dataclass(frozen=True)
class Opened:
    """What a reader found: the splits that could be read, and how the test split is cut for the usual table."""

    name: str
    splits: dict[str, Split]
    folds: int = 1
