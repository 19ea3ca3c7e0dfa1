"""The paper's Table 1 on a data set of ours: recipes x seeds, several runs sharing one device, resumable.

    python benchmarks/table1.py data/f8k_pocket --dataset f8k --seeds 0 1 2 --jobs 9
    python benchmarks/table1.py data/f8k_pocket --recipes rvse_selhn --name rvse_selhn/B -s model.mlp_order=post_norm

Every run selects its epoch on dev and reads test once. `RESULTS/runs.csv` keeps every run as data, `table.md` the
means. A run that is in the CSV is not trained again.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from report import environment, table

from selhn.train import RECIPES, get_recipe, override, run_config

COLUMNS = ["name", "dataset", "seed", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum",
           "dev_rsum", "best_epoch", "stalled", "seconds"]  # fmt: skip


def one_run(recipe: str, dataset: str, data: str, seed: int, settings: list[str]) -> dict[str, object]:
    """Train one recipe and return its row."""
    start = time.perf_counter()
    config = override(get_recipe(f"{recipe}_{dataset}"), [f"data={data}", f"seed={seed}", *settings])
    run = run_config(config, quiet=True)
    recalls = {f"{way}_r{k}": getattr(run.test, way)[k] for way in ("i2t", "t2i") for k in (1, 5, 10)}
    return {"dataset": dataset, "seed": seed, **recalls, "rsum": run.test.rsum, "dev_rsum": run.dev.rsum,
            "best_epoch": run.best_epoch + 1, "stalled": run.stalled is not None,
            "seconds": round(time.perf_counter() - start, 1)}  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    """The runs that are done."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_tables(folder: Path, rows: list[dict[str, str]]) -> None:
    """All runs as CSV, means over seeds as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(rows, key=lambda row: (row["name"], int(row["seed"])))
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    lines = []
    for name in sorted({row["name"] for row in rows}):
        own = [row for row in rows if row["name"] == name]
        means = [f"{statistics.fmean(float(row[column]) for row in own):.1f}" for column in COLUMNS[3:9]]
        rsums = [float(row["rsum"]) for row in own]
        deviation = f" ± {statistics.stdev(rsums):.1f}" if len(rsums) > 1 else ""
        stalled = sum(row["stalled"] == "True" for row in own)
        lines.append([name, *means, f"{statistics.fmean(rsums):.1f}{deviation}", f"{stalled}/{len(own)}"])
    header = ["run", "i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "RSUM", "stalled"]
    (folder / "table.md").write_text(f"{environment()}\n\n{table(header, lines)}\n")


def main() -> None:
    """Run what is missing, at most `--jobs` at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--dataset", default="f8k")
    parser.add_argument(
        "--recipes", nargs="+", default=[name for name in RECIPES if name.startswith(("vse_", "rvse_"))]
    )
    parser.add_argument("--name", default="", help="name of the row, where settings make it another than the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-s", "--settings", nargs="*", default=[])
    parser.add_argument("--results", type=Path, default=Path("runs/table1"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        recipe, seed = json.loads(arguments.one)
        row = one_run(recipe, arguments.dataset, arguments.data, seed, arguments.settings)
        print(json.dumps(row))
        return
    done = read_rows(arguments.results / "runs.csv")
    have = {(row["name"], int(row["seed"])) for row in done}
    waiting = [(recipe, seed) for seed in arguments.seeds for recipe in arguments.recipes
               if (arguments.name or recipe, seed) not in have]  # fmt: skip
    running: dict[tuple[str, int], subprocess.Popen[str]] = {}
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            job = waiting.pop(0)
            command = [sys.executable, __file__, arguments.data, "--dataset", arguments.dataset,
                       "--one", json.dumps(job), "-s", *arguments.settings]  # fmt: skip
            # Many processes share the cores; more threads than that only fight.
            environ = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // arguments.jobs))}
            running[job] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        for job in [job for job, process in running.items() if process.poll() is not None]:
            process = running.pop(job)
            output = process.stdout.read() if process.stdout else ""
            if process.returncode:
                print(f"{job} failed", flush=True)
                continue
            row = {"name": arguments.name or job[0], **json.loads(output.splitlines()[-1])}
            done.append({key: str(value) for key, value in row.items()})
            write_tables(arguments.results, done)
            print(f"{row['name']} seed {row['seed']}: RSUM {row['rsum']:.1f} in {row['seconds']} s", flush=True)
        time.sleep(0.5)
    print((arguments.results / "table.md").read_text())


if __name__ == "__main__":
    main()
