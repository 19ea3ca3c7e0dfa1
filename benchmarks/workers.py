"""Processes that live as long as there is work, and share one device: no run pays for a start.

A run that fails loses only itself; one whose process died is tried once more in a new one.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar
from unittest.mock import patch

JobT = TypeVar("JobT")
Work = Callable[[Connection, int], None]
"""What a process does: `serve` with a function of its own, given the pipe and its number of threads."""


PROBE = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()"]


class Outcome(NamedTuple):
    """What became of a job: its result, or what went wrong."""

    job: Any
    result: Any = None
    error: str = ""
    ended: bool = False
    """Whether the process has ended with it."""


def serve(pipe: Connection, run: Callable[[Any], Any], is_broken: Callable[[Exception], bool]) -> None:
    """Answer jobs from the pipe until it is closed; after an error that leaves the process `is_broken`, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                pipe.send(Outcome(job, run(job)))
            except Exception as error:  # whatever it is, the next job may do better
                ended = is_broken(error)
                pipe.send(Outcome(job, error=f"{type(error).__name__}: {str(error)[:500]}", ended=ended))
                if ended:
                    return


class Workers(Generic[JobT]):
    """A fixed number of processes that take jobs in the order given."""

    def __init__(self, work: Work, number: int):
        self.work = work
        self.number = number
        # Many processes share the cores; more threads than that only fight.
        most = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        self.threads = max(1, min(most, (os.cpu_count() or 1) // number))
        self._context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork

    def run(self, jobs: Sequence[JobT], until: float = float("inf")) -> Iterator[Outcome]:
        """The result of each job when it ends; none is started after the time `until` (of `time.monotonic`)."""
        waiting, again = list(jobs), set[int]()
        busy: dict[Any, tuple[Any, JobT]] = {}
        idle: list[tuple[Any, Any]] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self.number and time.monotonic() < until:
                    process, pipe = idle.pop() if idle else self._start()
                    job = waiting.pop(0)
                    busy[pipe] = (process, job)
                    with suppress(OSError):  # it died while idle: found out below
                        pipe.send(job)
                if not busy:
                    return
                for pipe in wait(list(busy)):
                    process, job = busy.pop(pipe)
                    outcome = _answer(process, pipe, job)
                    if not outcome.ended:
                        idle.append((process, pipe))
                    elif id(job) not in again:
                        again.add(id(job))
                        waiting.insert(0, job)
                        continue
                    yield outcome
        finally:
            for process, _ in busy.values():  # left only when the caller goes away
                process.terminate()
            for process, pipe in [*idle, *((process, pipe) for pipe, (process, _) in busy.items())]:
                pipe.close()
                process.join()

    def _start(self) -> tuple[Any, Connection]:
        here, there = self._context.Pipe()
        process = self._context.Process(target=self.work, args=(there, self.threads), daemon=True)
        process.start()
        there.close()  # so that the death of the process closes the pipe
        return process, here


def _answer(process: Any, pipe: Any, job: Any) -> Outcome:
    try:
        outcome: Outcome = pipe.recv()
    except (EOFError, OSError):
        process.join()
        outcome = Outcome(job, error=f"its process died (exit code {process.exitcode})", ended=True)
    if outcome.ended:
        pipe.close()
    return outcome


@contextmanager
def device_shared_by_kernels() -> Iterator[bool]:
    """NVIDIA's MPS while in here, where it can be had: kernels of several processes then run at once.

    Without it the device gives each process a slice of time, in which small kernels leave most of it empty.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:  # of a daemon that serves other processes too
        yield True
        return
    daemon = shutil.which("nvidia-cuda-mps-control")
    if daemon is None:
        yield False
        return
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        with patch.dict(os.environ, {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}):
            started = subprocess.run([daemon, "-d"], **silent).returncode == 0
            try:
                # A daemon that starts and serves nobody would leave every run to the CPU.
                serves = started and subprocess.run(PROBE, **silent).returncode == 0
                if serves:
                    yield True
            finally:
                if started:  # servers that still have a client, such as this process, end after 5 seconds
                    with suppress(subprocess.TimeoutExpired):
                        subprocess.run([daemon], input=b"quit -t 5\n", timeout=30, **silent)
        if not serves:
            yield False
