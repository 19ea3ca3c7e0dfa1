"""Verdicts on many short runs, against what became of them: which does `selhn diagnose` misjudge?

    python benchmarks/verdicts.py --jobs 2
    python benchmarks/verdicts.py --only 'vse_fc-*' 'plain-*' --seeds 0

Runs of the generated world (several models, losses and seeds, a few with a learning rate of 10, a few on so little data
that they overfit) and of `plain_loop.py`. Truth is decided by RSUM on dev alone: the runs of a set-up, which differ in
loss and seed only, are measured against the loss that did best in it, and one that ends below `FAILED_BELOW` of that
has failed, whatever its loss and delta_s did. On seeds 2 to 9 shares are below 0.66 or above 0.84, but for one at the
line. The rules of alarm and verdict were set on seeds up to 27, so that later ones are judged unless others are asked
for. Each log is judged unchanged, and then as three foreign logs with only a loss; of those "unclear" is not a
verdict, and counted apart. Finished runs in the folder are kept: stop whenever you like, and start the same command to
continue.
"""

import argparse
import csv
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from plain_loop import BATCH, plain_run
from report import environment, save, table

from selhn.diagnose import Log, StallAlarm, diagnose, from_rows
from selhn.runs import RunFolder, read_log
from selhn.training import get_recipe, override, run_config

FAILED_BELOW = 0.75
"""Of the RSUM of the best loss."""
OVERFIT_BELOW, WINDOW = 0.965, 20
"""Of the best mean RSUM of so many epochs in a row, by the last; on seeds 12 to 25 up to 0.953, or from 0.968."""
SHARES = (0.5, 0.6, 0.7, 0.8)
"""Others at which the line might be drawn."""
MODELS = ("vse_fc", "vse_mlp", "rvse", "scan_t2i_avg")
LOSSES = ("hn", "selhn", "triplet", "infonce", "tal", "warmup")
WORLD = ["data.images=2000", "model.dim=64", "model.word_dim=64", "drop_regions=0", "corrupt_words=0", "decay_at=[]",
         "device=cpu", "epochs=12", "batch_size=64", "lr=2e-3"]  # fmt: skip
SMALLER = {"scan_t2i_avg": ["data.regions=8", "model.dim=32", "model.word_dim=32"]}
"""A model that compares every word with every region takes ten times as long on a CPU."""
WRONG_STEP = (("vse_mlp", "hn"), ("rvse", "selhn"), ("vse_fc", "infonce"))
LITTLE_DATA = (("vse_fc", "infonce"), ("vse_mlp", "triplet"))
EXPECTED = {
    "failed": ("stalled", "collapsing", "diverging"),
    "healthy": ("healthy",),
    "overfit": ("overfitting",),
}


@dataclass(frozen=True)
class Job:
    """One run: runs with the same `setup` differ in loss, learning rate and seed."""

    setup: str
    loss: str
    seed: int
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A folder for it."""
        changed = "".join(f"-{change.replace('=', '')}" for change in self.changes)
        return f"{self.setup}-{self.loss}{changed}-seed{self.seed}"


def jobs(seeds: Sequence[int]) -> Iterator[Job]:
    """All of them."""
    for seed in seeds:
        for model in MODELS:
            yield from (Job(model, loss, seed) for loss in LOSSES)
        yield from (Job("plain", loss, seed) for loss in LOSSES if loss != "warmup")
    yield from (Job(model, loss, seeds[0], ("lr=10.0",)) for model, loss in WRONG_STEP)
    yield from (Job(f"little_{model}", loss, seeds[0]) for model, loss in LITTLE_DATA)


def train(job: Job, folder: Path) -> None:
    """One run, unless it is there; `rsum.json` is RSUM on dev after every epoch, which no verdict on a loss sees."""
    if (folder / "rsum.json").exists():
        return
    torch.set_num_threads(1)
    if job.setup == "plain":
        folder.mkdir(parents=True, exist_ok=True)
        rows = plain_run(job.loss, seed=job.seed)
        (folder / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        little = ["data.images=100", "epochs=120"] if is_little(job) else []
        model = job.setup.removeprefix("little_")
        settings = [
            *WORLD,
            *SMALLER.get(model, []),
            *little,
            f"loss={job.loss}",
            f"seed={job.seed}",
            *job.changes,
        ]
        begun = RunFolder(folder).started
        try:
            run_config(
                override(get_recipe(f"{model}_selhn_world"), settings), folder, resume=begun, quiet=True
            )
        except ValueError as error:
            if "NaN or infinite" not in str(error):  # that ends a run, and its log is what is judged
                raise
    log = the_log(folder)
    (folder / "rsum.json").write_text(json.dumps([rsum for _, rsum in log.dev]))


def written(folder: Path) -> Path:
    """What to diagnose: a run of ours, or what the probe in the plain loop wrote."""
    return folder if (folder / "log.jsonl").exists() else folder / "probe.jsonl"


def the_log(folder: Path) -> Log:
    """The rows of a run."""
    path = written(folder)
    return from_rows(read_log(path / "log.jsonl" if path.is_dir() else path))


def shares(found: dict[Job, list[float]]) -> dict[Job, float]:
    """RSUM on dev at the end of every run, as a share of what the best loss of its set-up has (median over seeds)."""
    best: dict[str, float] = {}
    for setup in {job.setup for job in found}:
        ends: dict[str, list[float]] = {}
        for job, rsums in found.items():
            if job.setup == setup and not job.changes:
                ends.setdefault(job.loss, []).append(rsums[-1])
        best[setup] = max(statistics.median(values) for values in ends.values())
    return {job: (rsums[-1] / best[job.setup] if rsums else 0.0) for job, rsums in found.items()}


def truths(found: dict[Job, list[float]], line: float = FAILED_BELOW) -> dict[Job, str]:
    """What became of every run, by RSUM on dev alone."""
    reached = shares(found)
    truth = {}
    for job, rsums in found.items():
        if is_little(job):
            means = [statistics.fmean(rsums[at : at + WINDOW]) for at in range(len(rsums) - WINDOW + 1)]
            truth[job] = "overfit" if means[-1] < OVERFIT_BELOW * max(means) else "healthy"
        else:
            truth[job] = "failed" if reached[job] < line else "healthy"
    return truth


def is_little(job: Job) -> bool:
    """Whether it has so little data that it overfits."""
    return job.setup.startswith("little_")


def foreign(log: Log, folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The loss alone, as others log it: every step, sums every ten, means of a stretch; and what is told of it."""
    steps, losses = log.steps.astype(int).tolist(), log.loss.tolist()
    every, summed, means = (folder / name for name in ("foreign.csv", "foreign.jsonl", "foreign_means.csv"))
    with every.open("w", newline="") as file:
        csv.writer(file).writerows([("iter", "Loss"), *zip(steps, losses)])
    tenth = max(1, 10 // max(1, steps[1] - steps[0]))
    rows = [{"global_step": s, "train/loss": 2 * BATCH * x} for s, x in zip(steps[::tenth], losses[::tenth])]
    summed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    size = max(1, len(losses) // 20)
    chunks = [statistics.fmean(losses[at : at + size]) for at in range(0, len(losses) - size + 1, size)]
    with means.open("w", newline="") as file:
        csv.writer(file).writerows([("epoch", "train_loss"), *enumerate(chunks)])
    told = {"batch": BATCH}
    return {"every step": (every, told), "sums": (summed, told), "means": (means, {})}


def alarm_delay(log: Log, plateau: float | None) -> tuple[int | None, int]:
    """Steps from where delta_s fell below epsilon for good to the alarm, None where it was silent; and to the end."""
    alarm, went_off, onset = StallAlarm(plateau), None, int(log.steps[0])
    columns = {
        "loss_per_anchor": log.loss,
        "delta_s": log.columns["delta_s"],
        "spread": log.columns["spread"],
    }
    for number, step in enumerate(log.steps.astype(int).tolist()):
        row = {name: float(column[number]) for name, column in columns.items()}
        if alarm.update(step, row):
            went_off = step
        onset = step if row["delta_s"] >= alarm.epsilon else onset
    return None if went_off is None else max(0, went_off - onset), int(log.steps[-1]) - onset


def report(found: dict[Job, list[float]], runs: Path) -> str:
    """What was said of every run and what became of it."""
    lines, confusion, delays, wrong, left_open = [], Counter[tuple[str, str, str]](), [], [], []
    judged: dict[Job, str] = {}
    reached = shares(found)
    for job, truth in truths(found).items():
        folder = runs / job.name
        log = the_log(folder)
        verdict, _, plateau, _ = diagnose(written(folder))
        said = {"log": verdict}
        if len(log.loss) > 20 and truth != "overfit":  # a training loss alone cannot show that
            said |= {form: diagnose(path, **told)[0] for form, (path, told) in foreign(log, folder).items()}
        judged[job] = verdict.kind
        for form, one in said.items():
            confusion[(form, truth, one.kind)] += 1
            if one.kind == "unclear" and form != "log":
                left_open.append(f"{job.name} ({form}): {truth}")
            elif one.kind not in EXPECTED[truth]:
                wrong.append(f"{job.name} ({form}): {truth}, judged {one.kind}")
        if truth == "failed" and verdict.kind == "stalled":
            delay, rest = alarm_delay(log, plateau)
            delays.append(f"{job.name} {'silent' if delay is None else delay} (of {rest})")
        kinds = [said[form].kind if form in said else "-" for form in ("log", "every step", "sums", "means")]
        rsum = f"{found[job][-1]:.1f}" if found[job] else "-"
        lines.append([job.name, rsum, f"{reached[job]:.2f}", truth, *kinds])
    forms = sorted({form for form, *_ in confusion}, key=["log", "every step", "sums", "means"].index)
    kinds = sorted({kind for *_, kind in confusion})
    rows = [
        (form, truth, [confusion[(form, truth, kind)] for kind in kinds])
        for form in forms
        for truth in EXPECTED
    ]
    counts = [[f"{form}, {truth}", *map(str, numbers)] for form, truth, numbers in rows if any(numbers)]
    return "\n\n".join(
        [
            f"# Verdicts on {len(found)} runs\n\n{environment()}",
            table(["log and truth", *kinds], counts),
            f"{len(wrong)} of {sum(confusion.values())} misjudged" + "".join(f"\n- {one}" for one in wrong),
            f"{len(left_open)} left open, of logs with nothing but a loss"
            + "".join(f"\n- {one}" for one in left_open),
            f"A run that ends below {FAILED_BELOW} of the best loss's RSUM has failed; those between 0.5 and 0.85: "
            + (
                ", ".join(f"{job.name} {share:.2f}" for job, share in reached.items() if 0.5 < share < 0.85)
                or "none"
            )
            + ". Misjudged of the runs' own logs, if the line were elsewhere: "
            + ", ".join(f"{share:g}: {misjudged(judged, truths(found, share))}" for share in SHARES),
            "Steps from delta_s below epsilon for good to the alarm, and to the end: " + "; ".join(delays),
            table(["run", "RSUM", "share", "truth", "its log", "every step", "sums", "means"], lines),
        ]
    )


def misjudged(judged: dict[Job, str], truth: dict[Job, str]) -> int:
    """How many verdicts are not what became of the run."""
    return sum(kind not in EXPECTED[truth[job]] for job, kind in judged.items())


def one(work: tuple[Job, Path]) -> None:
    """For a process of its own."""
    train(*work)
    print(work[0].name, flush=True)


def main() -> None:
    """Train what is missing, then judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[28, 29])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, such as 'vse_fc-*'")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    chosen = [
        job for job in jobs(arguments.seeds) if any(fnmatch(job.name, pattern) for pattern in arguments.only)
    ]
    with get_context("spawn").Pool(arguments.jobs) as pool:
        pool.map(one, [(job, arguments.runs / job.name) for job in chosen], chunksize=1)
    found = {job: json.loads((arguments.runs / job.name / "rsum.json").read_text()) for job in chosen}
    text = report(found, arguments.runs)
    print(f"{text}\n\nwritten to {save('verdicts', text, arguments.out)}")


if __name__ == "__main__":
    main()
