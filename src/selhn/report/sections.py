"""What the words and tables of a report say; how they look is in templates/report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selhn.eval import Metrics
from selhn.report.records import RunRecord

SIGNS = {"healthy": "✓", "stalled": "‖", "collapsing": "⤓", "diverging": "⤒", "overfitting": "≠", "unclear": "?"}
RECALLS = (1, 5, 10)
NONE = "–"
Cell = tuple[str, bool]
"""A number as text, and whether it is the best of its column."""


def lead(runs: Sequence[RunRecord]) -> str:
    """The page in two sentences."""
    best = max(runs, key=lambda run: run.rsum)
    split = "dev" if best.test is None else "test"
    reached = f"RSUM {best.rsum:.1f} on {split}" if best.rsum >= 0 else "nothing measured yet"
    if len(runs) == 1:
        return f"{best.made_of}: {best.verdict.kind}, {reached}."
    kinds = [f"{run.name} is {run.verdict.kind}" for run in runs]
    words = ", ".join(kinds[:-1]) + f" and {kinds[-1]}"
    return f"{len(runs)} runs, of which {best.name} is the best ({reached}). By their logs {words}."


def results(runs: Sequence[RunRecord]) -> dict[str, list[tuple[int, list[Cell]]]]:
    """Rows of recalls, RSUM and best epoch, each with the number of its run, under what they were measured on."""
    groups = {
        "On test, measured once with the weights of the best epoch on dev": [run.test for run in runs],
        "On dev, at its best epoch": [run.dev for run in runs],
    }
    return {words: _rows(runs, found) for words, found in groups.items() if any(found)}


def _rows(runs: Sequence[RunRecord], found: Sequence[Metrics | None]) -> list[tuple[int, list[Cell]]]:
    table = {number: _numbers(one) for number, one in enumerate(found) if one is not None}
    columns = zip(*table.values())
    best = [max((value for value in column if value is not None), default=None) for column in columns]
    rows = []
    for number, values in table.items():
        cells = [
            (NONE if value is None else f"{value:.1f}", len(table) > 1 and value == top)
            for value, top in zip(values, best)
        ]
        rows.append((number, [*cells, (str(runs[number].best_epoch or NONE), False)]))
    return rows


def _numbers(found: Metrics) -> list[float | None]:
    return [*(way.recalls.get(k) for way in (found.i2t, found.t2i) for k in RECALLS), found.rsum]


@dataclass(frozen=True)
class Compared:
    """Named values of every run."""

    tables: Sequence[Mapping[str, str]]

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return list(dict.fromkeys(name for table in self.tables for name in table))

    @property
    def differing(self) -> list[str]:
        """Names whose values differ."""
        return [name for name in self.names if len({table.get(name) for table in self.tables}) > 1]
