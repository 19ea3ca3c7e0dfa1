"""The verdict on a log: what happened, since when, the evidence, and what helps."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from selhn.diagnose.facts import ENOUGH_ROWS, Facts
from selhn.diagnose.logs import Clock, Log
from selhn.diagnose.rules import REMEDIES, RULES, Finding, Kind, no_number
from selhn.diagnose.stall import PATIENCE, Plateau

MANY_ROWS = 100_000


@dataclass(frozen=True)
class Verdict:
    """What happened in a run."""

    kind: Kind
    since: int | None
    """The step at which it began, if there is one."""
    why: str
    evidence: tuple[str, ...]
    remedy: str
    clock: Clock = "step"
    """What `since` counts: rows, in a log that does not say at which steps they were written."""

    @property
    def title(self) -> str:
        return self.kind if self.since is None else f"{self.kind} since {self.clock} {self.since:,}"

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.why}.", *(f"  - {one}" for one in self.evidence)]
        return "\n".join([*lines, f"What helps: {self.remedy}."] if self.kind != "healthy" else lines)

    @property
    def row(self) -> dict[str, str]:
        """A row of a table."""
        return {"verdict": self.title, "why": self.why, "what helps": self.remedy}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    log: Log,
    plateaus: Iterable[Plateau] = (),
    *,
    epsilon: float = 0.01,
    patience: int = PATIENCE,
    mines: bool = True,
    remedy: str | None = None,
) -> Verdict:
    """The verdict on a log: that of the first of `RULES` that holds.

    `plateaus` are the values at which its loss may sit: several if the loss is not known, and the one
    that fits counts; none if the log has delta_s and the spread of the scores. `patience` is how long the
    loss may stand still. `mines` says whether it uses the hardest negatives only, so that scores that
    collapse are not separated again; `remedy` says what helps against that.
    """
    log = log.thinned(MANY_ROWS)
    finite = np.isfinite(log.loss)
    rows, skipped = int(finite.sum()), int((~finite).sum())
    kind: Kind
    if (found := no_number(log)) is not None:
        kind = "diverging"
    elif rows < ENOUGH_ROWS:
        words = "1 row is" if rows == 1 else f"{rows} rows are"
        more = f"train longer, or log more often: {ENOUGH_ROWS} rows are needed"
        kind, found = "unclear", Finding(f"{words} too few to judge", remedy=more)
    else:
        facts = Facts(log.where(finite), plateaus, epsilon, patience, mines, remedy)
        kind, found = next((kind, said) for kind, rule in RULES if (said := rule(facts)) is not None)
    told = (f"{skipped} of {len(finite)} rows have no finite loss",) if skipped else ()
    since = None if found.since is None else log.place(int(found.since))
    remedy = found.remedy or REMEDIES[kind]
    return Verdict(kind, since, found.why, (*told, *found.evidence), remedy, log.clock)
