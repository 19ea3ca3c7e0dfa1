"""`selhn reproduce`: tables with our numbers beside the paper's, figures, and one page with all of them."""

import csv
import io
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from selhn.base.errors import NotFound
from selhn.base.files import refuse_links, write_whole
from selhn.base.names import did_you_mean
from selhn.data import COCO_FOLDS
from selhn.diagnose import how_it_ended
from selhn.eval import Metrics
from selhn.reproduce.paper_figures import FIGURES
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import DATA_TITLES, RECALLS, RUNS, TABLES, PaperRow, Wanted, paper_rows
from selhn.runs import RunFolder
from selhn.training import RunConfig

NAMES = (*TABLES, *FIGURES)
HEADER = ("method", "loss", "kind", "i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "ours, RSUM", "paper, RSUM",
          "difference", "note")  # fmt: skip


def reproduce(
    names: Sequence[str],
    data: str = "world",
    *,
    out: Path | None = None,
    small: bool = False,
    seeds: Sequence[int] = (0,),
    settings: Sequence[str] = (),
    jobs: int = 0,
) -> list[Path]:
    """Train what is missing for these tables and figures and write them into `out`; returns their files.

    `names` are keys of `TABLES` and `FIGURES`, or "all"; `jobs` is the number of parallel runs, 0 for one
    after the other or, if they are small, one per core; the other arguments are those of `PaperRuns`.
    """
    chosen = expand(names)
    folder = out or Path("runs") / "reproduce" / (Path(data).name + ("-tiny" if small else ""))
    runs = PaperRuns(folder, data, settings, seeds, small)
    if needed := needed_runs(chosen, data):
        print(f"{', '.join(chosen)}: {len(needed)} runs on {runs.data.name}, in {folder}", flush=True)
        runs.train(needed, jobs or (os.cpu_count() or 1 if small else 1))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in chosen:
        if name in TABLES:
            written.append(write_table(name, runs))
            print(f"\n{written[-1].read_text()}", flush=True)
        elif FIGURES[name].runs and not any(runs.done(run) for run in FIGURES[name].runs):
            print(f"{name}: {FIGURES[name].title}: not drawn, none of its runs could be made", flush=True)
        else:
            written.append(FIGURES[name].draw(runs, folder / f"{name}.png"))
            print(f"{name}: {FIGURES[name].title}: {written[-1]}", flush=True)
    write_runs(folder)
    write_page(folder)
    return written


def expand(names: Sequence[str]) -> list[str]:
    """Names of tables and figures, each once, in the order of the paper."""
    unknown = next((name for name in names if name not in (*NAMES, "all")), None)
    if unknown is not None or not names:
        wrong = f"unknown table or figure {unknown!r}" if unknown is not None else "nothing was named"
        known = did_you_mean(unknown or "", (*NAMES, "all"), "`selhn reproduce --list` shows them")
        raise NotFound(f"{wrong}: {known}")
    return [name for name in NAMES if name in names or "all" in names]


def needed_runs(names: Sequence[str], data: str) -> list[Wanted]:
    """The runs behind tables and figures, each once."""
    rows = [row for name in names if name in TABLES for row in paper_rows(name) if row.applies_to(data)]
    of_tables = [run for row in rows for run in RUNS.get((row.method, row.loss), ())]
    of_figures = [run for name in names if name in FIGURES for run in FIGURES[name].runs]
    return list(dict.fromkeys([*of_tables, *of_figures]))


def describe(data: str) -> str:
    """A line for every table and figure, with the number of its runs."""
    titles = {**TABLES, **{name: figure.title for name, figure in FIGURES.items()}}
    lines = [f"{name:8} {len(needed_runs([name], data)):3} runs   {titles[name]}" for name in NAMES]
    return "\n".join([*lines, f"{'all':8} {len(needed_runs(NAMES, data)):3} runs   everything, no run twice"])


class Line:
    """A row of a table: the paper's numbers, ours for every seed, and a note."""

    def __init__(self, paper: PaperRow, ours: Sequence[Metrics], note: str, same_data: bool = True):
        self.paper, self.ours, self.note = paper, ours, note
        rsums = [one.rsum for one in ours]
        self.rsum = statistics.fmean(rsums) if rsums else None
        self.deviation = statistics.stdev(rsums) if len(rsums) > 1 else None
        """The standard deviation of our RSUM over the seeds."""
        self.recalls: list[float | None] = [None] * len(RECALLS)
        if ours:
            mean = Metrics.mean(ours)
            self.recalls = [*mean.i2t.recalls.values(), *mean.t2i.recalls.values()]
        self.difference: float | None = None
        """Ours minus the paper's; None if its numbers are not a target, or from other data."""
        if same_data and self.rsum is not None and paper.rsum is not None and "no target" not in paper.note:
            self.difference = self.rsum - paper.rsum


def line(row: PaperRow, runs: PaperRuns) -> Line:
    """A row of the paper beside the results of our runs."""
    members = RUNS.get((row.method, row.loss))
    notes, ours = [row.note], list[Metrics]()
    if members is None:
        notes.append("not ours yet")
    elif not row.applies_to(runs.data_name):
        notes.append(f"with --data {row.data.partition('_')[0]}")
    else:
        folds = COCO_FOLDS if row.data == "coco_1k" else 1
        if folds > 1 and (images := runs.data.test.num_images) % folds:
            notes.append(f"{images} test images do not divide by {folds}: all at once")
            folds = 1
        ours = runs.metrics(members, folds)
        notes += [f"{member.name}: {runs.failed[member]}" for member in members if member in runs.failed]
    return Line(row, ours, "; ".join(note for note in notes if note), _is_papers(runs))


def write_table(name: str, runs: PaperRuns) -> Path:
    """`NAME.md` and `NAME.csv`."""
    lines = [line(row, runs) for row in paper_rows(name)]
    ours, theirs = ([f"{whose}_{key}" for key in (*RECALLS, "rsum")] for whose in ("ours", "paper"))
    about: list[object] = ["data", "paper_data", "method", "loss", "kind"]
    rows = [[*about, *ours, "ours_rsum_deviation", *theirs, "difference", "seeds", "note"]]
    for one in lines:
        paper = one.paper
        numbers = [*one.recalls, one.rsum, one.deviation, *paper.recalls, paper.rsum, one.difference]
        about = [runs.data_name, paper.data, paper.method, paper.loss, paper.kind]
        rows.append([*about, *(_shown(number, ".2f", "") for number in numbers), len(one.ours), one.note])
    _write_csv(runs.out / f"{name}.csv", rows)
    path = runs.out / f"{name}.md"
    write_whole(path, _markdown(name, lines, runs))
    return path


def _markdown(name: str, lines: Sequence[Line], runs: PaperRuns) -> str:
    parts = [f"## Table {name.removeprefix('table')}: {TABLES[name]}", _made_from(runs)]
    for data in dict.fromkeys(one.paper.data for one in lines):
        rows = [HEADER, *(_cells(one) for one in lines if one.paper.data == data)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
        rows.insert(1, tuple("-" * width for width in widths))
        folds = ", mean of five folds of the test split" if data == "coco_1k" else ""
        parts.append(f"Paper: {DATA_TITLES[data]}{folds}.")
        parts.append("\n".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows
        ))  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _made_from(runs: PaperRuns) -> str:
    about = runs.environment()
    notes = ""
    if runs.small:
        notes += " Made with --tiny, to show that everything runs: neither the numbers nor their order say anything "
        notes += "about which loss is better. Instead of a BERT there is one layer with random weights."
    elif not _is_papers(runs):
        notes += " The paper's numbers are of other data: compare the order of the rows, not the numbers."
    changed = f", {' '.join(runs.settings)}" if runs.settings else ""
    return (
        f"Ours: {runs.data.name}, {runs.data.train.num_images:,} images to learn from, "
        f"{runs.data.test.num_images:,} to test, seeds {', '.join(map(str, runs.seeds))}{changed}; "
        f"{about['device']}, torch {about['torch']}, selhn {about['selhn']}.{notes}"
    )


def _is_papers(runs: PaperRuns) -> bool:
    """Whether the runs used the paper's data, so that its numbers can be subtracted."""
    return runs.data_name in ("f30k", "coco") and not runs.small


def _cells(one: Line) -> tuple[str, ...]:
    ours = _shown(one.rsum) + (f" ± {one.deviation:.1f}" if one.deviation is not None else "")
    about = (one.paper.method, one.paper.loss or "-", one.paper.kind or "-")
    difference = _shown(one.difference, "+.1f")
    return (*about, *map(_shown, one.recalls), ours, _shown(one.paper.rsum), difference, one.note)


def _shown(number: float | None, form: str = ".1f", none: str = "-") -> str:
    return none if number is None else format(number, form)


def write_runs(folder: Path) -> None:
    """`runs.csv`: every finished run, with what was trained, its best epoch on dev and how it ended."""
    rows: list[list[object]] = [
        ["run", "model", "loss", "seed", *RECALLS, "rsum", "dev_rsum", "best_epoch", "ended"]
    ]
    for path in sorted(folder.glob("runs/*/seed*")):
        if (results := RunFolder(path).results) is not None:
            test = Metrics.from_dict(results.test)
            numbers = [*test.i2t.recalls.values(), *test.t2i.recalls.values(), test.rsum, results.dev["rsum"]]
            about = [results.best_epoch + 1, how_it_ended(results.stalled, test)]
            seed = path.name.removeprefix("seed")
            config = RunConfig.of_run(path)
            loss = " ".join(
                [config.loss, *(f"{name}={value}" for name, value in config.loss_settings.items())]
            )
            rows.append(
                [path.parent.name, config.model, loss, seed, *(f"{number:.2f}" for number in numbers), *about]
            )
    _write_csv(folder / "runs.csv", rows)


def _write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_whole(path, table.getvalue())


def write_page(folder: Path) -> None:
    """One page of all tables and figures in the folder."""
    refuse_links(folder, [f"{name}.md" for name in TABLES])
    parts = ["# Reproduction of the paper's tables and figures"]
    for name in NAMES:
        if name in TABLES and (folder / f"{name}.md").exists():
            parts.append((folder / f"{name}.md").read_text(encoding="utf-8").strip())
        for picture in [f"{name}{end}" for end in (".svg", ".png") if (folder / f"{name}{end}").exists()][:1]:
            title = FIGURES[name].title
            parts.append(f"## Figure {name.removeprefix('fig')}: {title}\n\n![{title}]({picture})")
    write_whole(folder / "README.md", "\n\n".join(parts) + "\n")
