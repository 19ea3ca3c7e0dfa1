"""A training step on a CPU while other programs use its cores: how long the threads of torch spin decides.

    python benchmarks/busy.py                    with none, one and two busy processes beside it; ten minutes

A thread of OpenMP that waits for another spins for a while and then sleeps (`GOMP_SPINCOUNT`). `selhn` on the command
line sets 3000, unless GOMP_SPINCOUNT or OMP_WAIT_POLICY is set; the default of GNU's OpenMP is 300,000. The step is
that of `train_step.py`: RVSE, B = 32, 12 x 256 regions, d = 128. Each cell is the median of `--rounds` processes, with
the slowest in brackets.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from report import environment, save, table
from train_step import make_data, make_model, our_step

from selhn.training.config import TrainConfig
from selhn.training.step import on_device

SPINS = ("300000", "1000", "3000", "10000")
STEPS = 20


def one() -> float:
    """Milliseconds of a step in this process."""
    config, device = TrainConfig(batch_size=32, device="cpu"), torch.device("cpu")
    data = on_device(make_data(200, 12, 256), config, device)
    step = our_step(make_model("rvse", data, 128, small=True), data, config, device)
    for _ in range(3):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - start) / STEPS * 1e3


def in_own_process(spin: str) -> float:
    """The same where threads spin so often before they sleep, which they read when they start."""
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    said = subprocess.check_output(
        [sys.executable, __file__, "--one"], text=True, env={**own, "GOMP_SPINCOUNT": spin}
    )
    return float(said)


def main() -> None:
    """A row for each number of busy processes; the settings take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(one())
        return
    rows = []
    for busy in arguments.busy:
        with ExitStack() as stack:
            for _ in range(busy):
                process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                stack.callback(process.wait)
                stack.callback(process.kill)
            times: dict[str, list[float]] = {spin: [] for spin in SPINS}
            for _ in range(arguments.rounds):
                for spin in SPINS:
                    times[spin].append(in_own_process(spin))
        rows.append(
            [str(busy), *(f"{statistics.median(own):.1f} ({max(own):.1f})" for own in times.values())]
        )
        print(" | ".join(rows[-1]), flush=True)
    header = ["busy processes", *(f"GOMP_SPINCOUNT={spin}, ms" for spin in SPINS)]
    text = f"# A training step on a busy CPU\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save('busy-cpu', text, arguments.out)}")


if __name__ == "__main__":
    main()
