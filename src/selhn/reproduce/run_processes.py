"""Runs made one after the other, or several at a time in processes of their own."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias, TypeVar

import torch

from selhn.base.errors import SelhnError
from selhn.diagnose import how_it_ended
from selhn.runs import RunFolder
from selhn.training import RunConfig, run_config


class RunOutcome(NamedTuple):
    """What became of a run: its result or an error, in words."""

    said: str
    failed: bool = False
    lost_process: bool = False
    """Whether its process cannot make another run."""


Key = TypeVar("Key")
Task: TypeAlias = tuple[RunConfig, Path, bool, str]
"""A run: its settings and folder, whether it is quiet, and what stands before every line it prints."""


def train_run(config: RunConfig, folder: Path, quiet: bool, label: str) -> RunOutcome:
    """Make one run; errors that do not affect other runs are returned."""
    try:
        run = run_config(config, folder, resume=RunFolder(folder).started, quiet=quiet, label=label)
    except (SelhnError, torch.OutOfMemoryError) as error:
        # An error of the GPU while a step is recorded is the cause of ours.
        return RunOutcome(str(error), True, lost_process=isinstance(error.__cause__, torch.AcceleratorError))
    except torch.AcceleratorError as error:  # after it, every call to this GPU from this process fails
        return RunOutcome(str(error).partition("\n")[0], True, lost_process=True)
    return RunOutcome(f"{run.test}   {how_it_ended(run.stalled, run.test)}".rstrip())


def outcomes(tasks: Mapping[Key, Task], jobs: int, cores: int = 0) -> Iterator[tuple[Key, RunOutcome]]:
    """All runs: one at a time in this process, as long as it lasts, or several in processes of their own.

    Each process uses so many `cores`; 0 for an equal share of all.
    """
    left = dict(tasks)
    for key, task in tasks.items() if jobs == 1 else ():
        outcome = train_run(*task)
        del left[key]
        yield key, outcome
        if outcome.lost_process:
            break
    if left:
        yield from _in_processes(left, jobs, cores or max(1, (os.cpu_count() or 1) // jobs))


def _in_processes(tasks: Mapping[Key, Task], jobs: int, cores: int) -> Iterator[tuple[Key, RunOutcome]]:
    """Each process makes one run after the other; one that is lost is replaced, and takes no other run with it."""
    spawn = multiprocessing.get_context("spawn")
    idle = SimpleQueue[ProcessPoolExecutor]()  # of one process each, which starts with its first run

    def worker() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, spawn, initializer=torch.set_num_threads, initargs=(cores,))

    def train(task: Task) -> RunOutcome:
        own = idle.get()
        try:
            outcome = _train_in(own, task)
            if outcome.lost_process:
                own.shutdown()
                own = worker()
        finally:
            idle.put(own)
        return outcome

    threads = ThreadPoolExecutor(jobs)
    try:
        for _ in range(jobs):
            idle.put(worker())
        waiting = {threads.submit(train, task): key for key, task in tasks.items()}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        threads.shutdown(cancel_futures=True)
        while not idle.empty():
            idle.get().shutdown()


def _train_in(process: ProcessPoolExecutor, task: Task) -> RunOutcome:
    try:
        return process.submit(train_run, *task).result()
    except BrokenProcessPool:
        said = "its process was killed, perhaps because memory ran out: try fewer --jobs"
        return RunOutcome(said, True, lost_process=True)
