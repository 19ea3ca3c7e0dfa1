"""Losses, models and seeds compared on one data set: many runs share one device, and every run becomes a row of data.

    python benchmarks/compare.py data/f8k_pocket --sets table1 --jobs 9
    python benchmarks/compare.py data/f8k_pocket --sets losses batch own --jobs 10 --minutes 10 --mps --logs runs/logs
    python benchmarks/compare.py data/f8k_pocket --models rvse vse_fc --losses selhn "tal temperature=0.05" --seeds 0 1
    python benchmarks/compare.py data/f8k_pocket --recipes rvse_selhn --name rvse_selhn/B -s model.mlp_order=post_norm

Every run chooses its epoch on dev and reads test once. `RESULTS/runs.csv` has a row per run as soon as it ends,
`table.md` the means and deviations over seeds. A run that is in the CSV is not trained again: stop whenever you like,
and start the same command to continue. What this version cannot run is named and left out. `experiments.py` has
the sets.
"""

import argparse
import csv
import os
import re
import statistics
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path

import candidates
import torch
from experiments import SETS, TABLE1, Experiment, experiment
from one_run import Job, WarmRunner, recalls
from report import commit, environment, table
from workers import Outcome, Workers, device_shared_by_kernels, serve

from selhn.eval import ensemble, recall
from selhn.training import RunConfig

RECALLS = ["i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10"]
COLUMNS = ["commit", "steps", "learning_rate", "name", "dataset", "seed", *RECALLS, "rsum", "dev_rsum", "best_epoch",
           "stalled", "seconds", "device", "settings"]  # fmt: skip
Row = dict[str, str]


def work(pipe: Connection, threads: int) -> None:
    """A worker process: one warm runner for all the jobs it is handed."""
    torch.set_num_threads(threads)
    candidates.enter()
    # After an error of the device itself nothing more can be had from it in this process.
    serve(pipe, WarmRunner().run, lambda error: "CUDA" in str(error) and not isinstance(error, ValueError))


class Results:
    """The rows of all runs: `runs.csv` replaced whole after each, and `table.md` from it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = environment()
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[Row] = []
        if (folder / "runs.csv").exists():
            with (folder / "runs.csv").open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def done(self) -> set[tuple[str, ...]]:
        """The runs that are done."""
        return {tuple(row[name] for name in ("name", "dataset", "seed", "settings")) for row in self.rows}

    def add(self, row: dict[str, object]) -> None:
        """One more run, on disk when this returns."""
        self.rows.append({name: str(row.get(name, "")) for name in COLUMNS})
        self.rows.sort(key=lambda one: (one["name"], one["settings"], int(one["seed"])))
        unfinished = self.folder / ".runs.csv"
        with unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.folder / "runs.csv")
        (self.folder / "table.md").write_text(self.table())

    def table(self) -> str:
        """Means over seeds, and the deviation of RSUM."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row["name"], row["settings"]), []).append(row)
        lines = []
        for (name, _), own in groups.items():
            stalled = [row for row in own if row["stalled"] in ("True", "stalled", "at chance")]
            means = [f"{statistics.fmean(float(row[column]) for row in own):.1f}" for column in RECALLS]
            lines.append([name, str(len(own)), *means, with_deviation(own, "rsum"), with_deviation(own, "dev_rsum"),
                          f"{len(stalled)}/{len(own)}"])  # fmt: skip
        header = [
            "run",
            "seeds",
            "i2t R@1",
            "R@5",
            "R@10",
            "t2i R@1",
            "R@5",
            "R@10",
            "RSUM",
            "dev RSUM",
            "stalled or at chance",
        ]
        return f"{self.environment}\n\n{table(header, lines)}\n"


def with_deviation(rows: Sequence[Row], column: str) -> str:
    """312.4 ± 1.9 over the rows that have a number there."""
    values = [float(row[column]) for row in rows if row[column]]
    if not values:
        return "-"
    return f"{statistics.fmean(values):.1f}" + (
        f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    )


def chosen(arguments: argparse.Namespace) -> list[Experiment]:
    """The experiments that were asked for, each once."""
    every = [one for name in arguments.sets for one in SETS[name]()]
    every += [experiment(model, loss) for model in arguments.models for loss in arguments.losses]
    recipes = arguments.recipes if every or arguments.recipes else TABLE1
    every += [Experiment(arguments.name or recipe, recipe) for recipe in recipes]
    extra = tuple(arguments.settings)
    every = [replace(one, settings=(*one.settings, *extra)) for one in every]
    if arguments.seeds:
        every = [replace(one, seeds=tuple(arguments.seeds)) for one in every]
    wanted = [one for one in every if any(fnmatch(one.name, pattern) for pattern in arguments.only)]
    once: dict[tuple[str, ...], Experiment] = {}
    for one in wanted:  # sets overlap: then all seeds that any of them asks for
        known = once.get((one.name, *one.settings), one)
        seeds = tuple(dict.fromkeys([*known.seeds, *one.seeds]))
        once[(one.name, *one.settings)] = replace(
            one, seeds=seeds, keep_scores=one.keep_scores or known.keep_scores
        )
    return list(once.values())


STEP_COST = {"rvsepp": 3, "scan": 3, "bfan": 6, "saf": 6, "sgr": 8}
"""Rough cost of a training step by family of models, in steps of VSE."""
LOSS_COST = {"ncr": 2.5, "aoq": 3, "meta_spn": 10}
"""The same for losses that do more than score a batch."""


def cost(config: RunConfig) -> float:
    """Roughly how long a run takes compared with others: long runs start first."""
    step = STEP_COST.get(config.model.partition("_")[0], 1) * LOSS_COST.get(config.loss, 1)
    return step * config.train.epochs * max(1.0, 128 / config.train.batch_size)


def jobs_of(
    experiments: Sequence[Experiment], arguments: argparse.Namespace, done: set[tuple[str, ...]]
) -> list[Job]:
    """The runs that are missing and possible, the longest first; what is not possible is said."""
    jobs: list[tuple[float, Job]] = []
    skipped: dict[str, str] = {}
    missing = [one for one in experiments if one.members and not averaged(one, arguments.dataset, done)]
    wanted = {member for one in missing for member in one.members}
    for one in experiments:
        for seed in one.seeds if not one.members else ():
            job = Job(one.name, arguments.dataset, arguments.data, one.recipe, one.settings, seed)
            log = arguments.logs and arguments.logs / f"{file_name(one.name, seed, one.settings)}.csv"
            scores = scores_file(arguments.results, one.name, seed, one.settings) if one.keep_scores else None
            job = replace(job, log=log, log_epochs=arguments.log_epochs, scores=scores)
            try:
                config = job.config()
            except ValueError as error:
                skipped[one.name] = str(error)
                continue
            scores_missing = scores is not None and not scores.exists() and one.name in wanted
            if job.key not in done or scores_missing:
                jobs.append((cost(config), job))
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason[:160]}", flush=True)
    return [job for _, job in sorted(jobs, key=lambda entry: (-entry[0], entry[1].seed))]


def file_name(name: str, seed: int, settings: Sequence[str]) -> str:
    """A file for a run, another for every setting."""
    digest = f"{zlib.crc32(' '.join(settings).encode()):08x}"
    return re.sub(r"[^\w.=+-]+", "_", f"{name}-seed{seed}") + (f"-{digest}" if settings else "")


def scores_file(results: Path, name: str, seed: int, settings: Sequence[str] = ()) -> Path:
    """Where the test scores of a run are kept for an ensemble."""
    return results / "scores" / f"{file_name(name, seed, settings)}.pt"


def averaged(one: Experiment, dataset: str, done: set[tuple[str, ...]]) -> bool:
    """Whether the rows of an ensemble are there."""
    return all((one.name, dataset, str(seed), " ".join(one.settings)) in done for seed in one.seeds)


def average(experiments: Iterable[Experiment], dataset: str, results: Results) -> None:
    """The rows of ensembles whose members are all there."""
    done = results.done()
    for one in experiments:
        for seed in one.seeds if one.members else ():
            files = [scores_file(results.folder, member, seed, one.settings) for member in one.members]
            if averaged(replace(one, seeds=(seed,)), dataset, done) or not all(
                file.exists() for file in files
            ):
                continue
            kept = [torch.load(file, weights_only=True) for file in files]
            metrics = recall(ensemble(*(member["scores"] for member in kept)), kept[0]["image_of_text"])
            row = {
                "commit": commit(),
                "steps": "averaged scores",
                "name": one.name,
                "dataset": dataset,
                "seed": seed,
            }
            results.add({**row, **recalls(metrics), "stalled": "", "settings": " ".join(one.settings)})


def say(outcome: Outcome, left: int) -> None:
    """A line for a run that ended."""
    job: Job = outcome.job
    ended = (
        f"RSUM {outcome.result['rsum']} in {outcome.result['seconds']} s" if outcome.result else outcome.error
    )
    print(f"[{left} left] {job.name} seed {job.seed}: {ended}", flush=True)


def compare(arguments: argparse.Namespace) -> list[Outcome]:
    """Run what is missing; returns the runs that failed."""
    results, experiments, failed = Results(arguments.results), chosen(arguments), []
    jobs, at_commit = jobs_of(experiments, arguments, results.done()), commit()
    if arguments.list:
        print(
            "\n".join(f"{job.name} seed {job.seed} ({' '.join(job.settings)})" for job in jobs)
            or "nothing is left"
        )
        return []
    until, left = time.monotonic() + 60 * arguments.minutes, len(jobs)
    workers: Workers[Job] = Workers(work, min(arguments.jobs, max(1, len(jobs))))
    for outcome in workers.run(jobs, until):
        left -= 1
        say(outcome, left)
        if outcome.result is None:
            failed.append(outcome)
            continue
        if outcome.job.key not in results.done():
            results.add({"commit": at_commit, **outcome.result})
        average(experiments, arguments.dataset, results)
    print(f"\n{results.table()}")
    if left:
        print(
            f"{left} runs were not begun in {arguments.minutes:g} minutes: the same command continues with them"
        )
    for outcome in failed:
        print(f"failed: {outcome.job.name} seed {outcome.job.seed}: {outcome.error}")
    return failed


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="folder of the data set, or world")
    parser.add_argument("--dataset", default="f8k", help="whose recipes")
    parser.add_argument("--sets", nargs="+", default=[], choices=list(SETS))
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument(
        "--losses", nargs="+", default=[], help='with settings in one word: "tal temperature=0.05"'
    )
    parser.add_argument("--recipes", nargs="+", default=[])
    parser.add_argument(
        "--name", default="", help="name of the row, where settings make it another than the recipe"
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="keep experiments whose names match a pattern"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[], help="in place of those of the experiments"
    )
    parser.add_argument(
        "-s", "--settings", nargs="*", default=[], help="for all runs, such as epochs=5 centred=true"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after these no run is begun")
    parser.add_argument(
        "--mps", action="store_true", help="share the GPU by NVIDIA's MPS, where it can be had"
    )
    parser.add_argument("--results", type=Path, default=Path("runs/compare"))
    parser.add_argument(
        "--logs", type=Path, default=None, help="folder for the loss and delta_s of the first epochs"
    )
    parser.add_argument("--log-epochs", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="only say what would run")
    arguments = parser.parse_args()
    candidates.enter()
    if not arguments.mps:
        compare(arguments)
        return
    with device_shared_by_kernels() as shared:
        print("MPS shares the device" if shared else "MPS cannot be had here: runs take turns", flush=True)
        compare(arguments)


if __name__ == "__main__":
    main()
