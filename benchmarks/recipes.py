"""Recipes screened on dev: many runs share one device, and each becomes a line of JSON as soon as it ends.

    python benchmarks/recipes.py data/f8k_pocket --seeds 0 1 --jobs 8 --minutes 9
    python benchmarks/recipes.py data/f8k_pocket --only 'rvse-strong*' --seeds 0 1 2 3 4
    python benchmarks/recipes.py data/f8k_pocket --only rvse-strong --seeds 0 1 2 3 4 --test
    python benchmarks/recipes.py world --dataset world --only rvse rvse-ema -s epochs=3 data.images=500 model.dim=64

`recipes.txt` (or --table) has a row per recipe. A line of `--results` has the RSUM on dev after every epoch, and
the best. What it has is not trained again: stop whenever you like, and start the same command to continue. Test
is not read, unless `--test` says so; then the table and the sources must be committed, so that the line names
the commit at which the recipe was fixed (SELHN_COMMIT names it on a machine without git).
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from compare import cost, work
from one_run import Job
from report import commit, environment, table
from workers import Workers, device_shared_by_kernels

HERE = Path(__file__).parent
Line = dict[str, Any]


def read_table(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Recipe and settings of every row, by its name."""
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        words = text.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 2 or words[0] in rows:
            raise SystemExit(
                f"{path}: {text!r} is not a row NAME RECIPE key=value ..., or its name is there twice"
            )
        rows[words[0]] = words[1], tuple(words[2:])
    return rows


def read_results(path: Path) -> list[Line]:
    """All whole lines; one that was cut off in the middle is left out, and its run trained again."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def append(path: Path, line: Line) -> None:
    """One more line, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(len(whole[0]) + len(whole[1]))
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def key(line: Line) -> tuple[object, ...]:
    """How runs differ; those that read test are not the same as those that do not."""
    return line["dataset"], line["recipe"], line["settings"], line["seed"], "test" in line


def fixed_at(path: Path) -> str:
    """The commit that has the present sources and table; without one, test is not read."""
    found = commit()
    if "SELHN_COMMIT" in os.environ:  # where git is not: the one who names it answers for it
        return found
    listed = ["git", "status", "--porcelain", "--ignored", "--", path.resolve()]
    changed = subprocess.run(listed, cwd=path.resolve().parent, capture_output=True, text=True)
    if found == "unknown" or found.endswith("+") or changed.returncode or changed.stdout.strip():
        raise SystemExit(f"--test reads test for a recipe that is fixed: commit src and {path} first")
    return found


def jobs_of(arguments: argparse.Namespace, done: set[tuple[object, ...]]) -> list[Job]:
    """The runs that are missing, the longest first."""
    rows = read_table(arguments.table)
    chosen = [name for name in rows if any(fnmatch(name, pattern) for pattern in arguments.only)]
    if not chosen:
        raise SystemExit(
            f"no row of {arguments.table} is called {' or '.join(arguments.only)}: {', '.join(rows)}"
        )
    jobs: dict[tuple[object, ...], Job] = {}
    for seed in arguments.seeds:
        for name in chosen:
            recipe, settings = rows[name]
            settings = (*settings, *arguments.settings)
            scores = arguments.scores and arguments.scores / f"{name}-{seed}.pt"
            job = Job(
                name,
                arguments.dataset,
                arguments.data,
                recipe,
                settings,
                seed,
                scores=scores,
                test=arguments.test,
            )
            named = (arguments.dataset, recipe, " ".join(settings), seed, arguments.test)
            if named not in done:
                jobs.setdefault(named, job)
    return sorted(jobs.values(), key=lambda job: (job.seed, -cost(job.config())))


def summary(lines: list[Line]) -> str:
    """A row per recipe: mean and deviation of the best dev RSUM over seeds, the best first."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["recipe"], line["settings"]), []).append(line)
    rows = []
    for group in groups.values():
        best = {line["seed"]: line["dev_rsum"] for line in group}
        read = [line["test"]["rsum"] for line in group if "test" in line]
        epochs = "/".join(str(line["best_epoch"]) for line in group)
        rows.append((statistics.fmean(best.values()), [group[-1]["name"], str(len(best)), spread(list(best.values())),
                     epochs, f"{len(group[0]['dev'])}", spread(read)]))  # fmt: skip
    ordered = [row for _, row in sorted(rows, key=lambda entry: -entry[0])]
    return table(["recipe", "seeds", "best dev RSUM", "in epoch", "of", "test RSUM"], ordered)


def spread(values: list[float]) -> str:
    """349.3 ± 1.2."""
    if not values:
        return "-"
    return f"{statistics.fmean(values):.1f}" + (
        f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    )


def screen(arguments: argparse.Namespace) -> int:
    """Run what is missing; returns how many runs failed."""
    at_commit = fixed_at(arguments.table) if arguments.test else commit()
    jobs = jobs_of(arguments, {key(line) for line in read_results(arguments.results)})
    until, left, failed = time.monotonic() + 60 * arguments.minutes, len(jobs), 0
    print(f"{left} runs to do, {arguments.jobs} at a time", flush=True)
    workers: Workers[Job] = Workers(work, max(1, min(arguments.jobs, left)))
    for outcome in workers.run(jobs, until):
        left -= 1
        job, row = outcome.job, outcome.result
        if row is None:
            failed += 1
            print(f"failed: {job.name} seed {job.seed}: {outcome.error}", flush=True)
            continue
        line: Line = {"name": job.name, "dataset": job.dataset, "recipe": job.recipe,
                      "settings": " ".join(job.settings), "seed": job.seed, "commit": at_commit, "dev": row["dev"],
                      "dev_rsum": float(row["dev_rsum"]), "best_epoch": row["best_epoch"], "stalled": row["stalled"],
                      "seconds": float(row["seconds"]), "device": row["device"], "steps": row["steps"]}  # fmt: skip
        if arguments.test:
            line["test"] = {
                name: float(row[name]) for name in row if name == "rsum" or name[:3] in ("i2t", "t2i")
            }
        append(arguments.results, line)
        print(f"[{left} left] {job.name} seed {job.seed}: dev {row['dev_rsum']} in epoch {row['best_epoch']}, "
              f"{row['seconds']} s", flush=True)  # fmt: skip
    print(f"\n{environment()}\n\n{summary(read_results(arguments.results))}")
    if left:
        print(f"{left} runs were not begun: the same command continues with them")
    return failed


def main() -> None:
    """Read the command line and screen."""
    on_gpu = torch.cuda.device_count() > 0  # which does not start CUDA in this process, before MPS
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="folder of the data set, or world")
    parser.add_argument("--dataset", default="f8k", help="whose recipes")
    parser.add_argument("--table", type=Path, default=HERE / "recipes.txt")
    parser.add_argument("--only", nargs="+", default=["*"], help="rows whose names match a pattern")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-s", "--settings", nargs="*", default=[], help="for all rows, such as epochs=5")
    parser.add_argument(
        "--jobs", type=int, default=8 if on_gpu else 1, help="runs at a time; a GPU is shared by MPS"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no run is begun")
    parser.add_argument("--results", type=Path, default=Path("runs/recipes.jsonl"))
    parser.add_argument(
        "--scores", type=Path, help="folder for the scores of test, to compare two runs (with --test)"
    )
    parser.add_argument("--test", action="store_true", help="read test too: for a table that is committed")
    arguments = parser.parse_args()
    if arguments.scores and not arguments.test:
        parser.error("--scores keeps those of test: say --test too, once the table is committed")
    if arguments.test and arguments.settings:
        parser.error(
            "--test is for rows of the table as they are: write the settings into the table, and commit it"
        )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its processes end with it
    with device_shared_by_kernels() if on_gpu and arguments.jobs > 1 else nullcontext(False) as shared:
        if on_gpu:
            print(
                "MPS shares the device" if shared else "without MPS: runs take turns on the device",
                flush=True,
            )
        failed = screen(arguments)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
