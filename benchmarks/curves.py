"""Loss per anchor over the first epochs, one panel a model: from the logs that `compare.py --logs` keeps, or from runs.

python benchmarks/curves.py runs/logs stall.png --models scan_t2i_avg scan_i2t_avg bfan_equal sgr
python benchmarks/curves.py runs/reproduce/f8k/runs docs/systems_loss.png --epochs 10 --models scan_t2i_avg saf sgr
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selhn.diagnose.logs import smoothed
from selhn.diagnose.plots import COLOURS, pyplot
from selhn.runs import read_log

LOSSES = {"hn": "T-HN", "selhn": "SelHN"}


def loss_rows(path: Path, epochs: float) -> tuple[list[float], list[float]]:
    """Steps and losses of a log up to an epoch; the rows of evaluations have no loss."""
    with path.open(newline="") as file:
        rows = read_log(path) if path.suffix == ".jsonl" else list(csv.DictReader(file))
    steps = [row for row in rows if row.get("loss_per_anchor") and float(row["epoch"]) < epochs]
    return [float(row["step"]) for row in steps], [float(row["loss_per_anchor"]) for row in steps]


def draw(logs: Path, models: Sequence[str], path: Path, margin: float, epochs: float) -> None:
    """A row of panels that share their axes."""
    plt = pyplot()
    columns = 2 if len(models) in (2, 4) else min(len(models), 3)
    size = {"figsize": (4.1 * columns, 2.9 * -(-len(models) // columns)), "layout": "constrained"}
    figure, grid = plt.subplots(
        -(-len(models) // columns), columns, squeeze=False, sharex=True, sharey=True, **size
    )
    for axis in grid.flat[len(models) :]:
        axis.set_visible(False)
    for model, axis in zip(models, grid.flat):
        for (loss, title), colour in zip(LOSSES.items(), COLOURS):
            of_runs = logs.glob(f"{model}_{loss}/seed*/log.jsonl")
            for file in sorted([*logs.glob(f"{model}_{loss}-seed*.csv"), *of_runs]):
                steps, losses = loss_rows(file, epochs)
                axis.plot(steps, smoothed(np.array(losses)), color=colour, linewidth=1.6, label=title)
        axis.axhline(margin, color="#666", linewidth=1, linestyle=(0, (4, 3)))
        axis.set(title=model, ylim=(0, None))
        axis.grid(axis="y", color="#e8e8e8", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in grid[-1]:
        axis.set_xlabel("training step")
    for axis in grid[:, 0]:
        axis.set_ylabel("loss per anchor")
    grid[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--epochs", type=float, default=float("inf"), help="how many from the first on")
    arguments = parser.parse_args()
    draw(arguments.logs, arguments.models, arguments.out, arguments.margin, arguments.epochs)


if __name__ == "__main__":
    main()
