"""Training by several processes and in chunks: what it costs.

    python benchmarks/ranks.py --device cuda

1. A step of one process, and of a group of one, as `torchrun` with one process has it: it makes no exchange, and its
   step is recorded on a GPU. Then both as written, the second with every exchange of the distributed form.
2. Two processes of the gloo backend, which share the device, against one with the whole batch.
3. A large batch at once, and in chunks that are encoded again: time and the most memory.
"""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from report import environment, save, table
from train_step import endless, make_data, make_model, measure, warm_up

from selhn.base.ranks import Processes, joined
from selhn.data import Data
from selhn.losses import TripletSelHN
from selhn.ops.batch_norm import synced
from selhn.training.capture import recording_stream
from selhn.training.config import TrainConfig
from selhn.training.optim import make_optimizer
from selhn.training.protocols import Protocol
from selhn.training.step import make_batches, make_stepper, on_device

Make = Callable[[], Callable[[], object]]


def step_of(
    data: Data, config: TrainConfig, dim: int, ranks: Processes | None, name: str = "rvse"
) -> Callable[[], object]:
    """A step of the library's own loop."""
    device = torch.device(config.device)
    model = make_model(name, data, dim, small=True).to(device)
    batches = make_batches(model, data, config, device, ranks)
    protocol = Protocol(model, TripletSelHN(), data, batches, config)
    stepper, steps = make_stepper(protocol, make_optimizer(model, config, device)), endless(batches)
    shared = synced(model)

    def step() -> None:
        stepper(next(steps))

    if ranks is not None:
        shared.__enter__()  # until the end of the program
    return step


def two_processes(arguments: argparse.Namespace) -> float:
    """Milliseconds of a step that two processes share, each in a program of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    command = [sys.executable, __file__, "--device", arguments.device, "--rank"]
    running = [
        subprocess.Popen(
            command, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    return float(said[0].split()[-1])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rank", action="store_true", help="be one of the two processes")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    on_gpu, device = arguments.device == "cuda", torch.device(arguments.device)
    images, regions, width, dim, batch, large, chunk = (
        (2000, 36, 2048, 1024, 128, 4096, 512) if on_gpu else (400, 12, 256, 256, 128, 1024, 128)
    )
    # A step of several processes is not recorded, and so neither is what it is compared with.
    config = TrainConfig(batch_size=batch, device=arguments.device, capture="never")
    data, repeats = on_device(make_data(images, regions, width), config, device), 20 if on_gpu else 5
    if arguments.rank:
        with joined() as ranks:
            step = warm_up(lambda: step_of(data, config, dim, ranks), device)[0]
            print(measure([step], device, repeats)[0])
        return
    rows = []

    def compare(kinds: dict[str, Make]) -> None:
        with recording_stream(device):
            warm = {kind: warm_up(make, device) for kind, make in kinds.items()}
            times = measure([step for step, _ in warm.values()], device, repeats)
        for (kind, (_, peak)), milliseconds in zip(warm.items(), times, strict=True):
            rows.append([kind, f"{milliseconds:.2f}", f"{milliseconds / times[0]:.3f}", f"{peak:,.0f}"])
            print(" ".join(rows[-1]), flush=True)

    address = f"tcp://127.0.0.1:{29500 + os.getpid() % 1000}"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", init_method=address, rank=0, world_size=1
    )
    usual = replace(config, capture="auto")
    compare(
        {
            f"one process, B = {batch}": partial(step_of, data, usual, dim, None),
            "a group of one": partial(step_of, data, usual, dim, Processes.of()),
        }
    )
    compare(
        {
            "one process, as written": partial(step_of, data, config, dim, None),
            "as written, with every exchange": partial(step_of, data, config, dim, Processes(0, 1)),
        }
    )
    dist.destroy_process_group()
    both = two_processes(arguments)
    rows.append([f"two processes (gloo), B = {batch}", f"{both:.2f}", f"{both / float(rows[2][1]):.3f}", ""])
    print(" ".join(rows[-1]), flush=True)
    at_once, repeats = replace(config, batch_size=large), 5 if on_gpu else 1
    compare(
        {
            f"at once, B = {large}": lambda: step_of(data, at_once, dim, None, "vse_fc"),
            f"in chunks of {chunk}": lambda: step_of(
                data, replace(at_once, chunk=chunk), dim, None, "vse_fc"
            ),
        }
    )
    text = f"# Several processes, and chunks\n\n{environment()}\n\n{table(['step', 'ms', 'ratio', 'peak MiB'], rows)}"
    print(f"\n{text}\n\nwritten to {save(f'ranks-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
