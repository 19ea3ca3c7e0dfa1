"""The process in which pictures are indexed while others are served.

It has its own Python and its own threads of torch, at a low priority, so that answers stay quick, and if it
crashes the service continues. An index is safe against a kill at any moment, so this is how it is stopped.
Nothing heavy is imported above: until the process ignores Ctrl-C, Ctrl-C would end it with a traceback.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from selhn.base.disk_errors import is_disk_full
from selhn.base.errors import Locked, SelhnError

Work = Callable[[Path, Sequence[Path]], Iterable[object]]
ENOUGH_SPACE = 64 * 2**20
"""Bytes that must be free before indexing is tried again on a disk that was full."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended: what there is to say about each folder, or the problem."""

    said: Sequence[str] = ()
    problem: str = ""
    again: bool = False
    """Whether it may work later: the disk was full, or another process was writing."""


class Indexer:
    """A process that brings an index up to date once."""

    def __init__(
        self, index: Path, folders: Sequence[Path], model: Path | str | None = None, work: Work | None = None
    ):
        context = multiprocessing.get_context("spawn")
        self._told, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_index, args=(index, folders, model, work, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def wait(self, seconds: float) -> bool:
        """Wait; returns whether it has said something in this time, or has ended."""
        return self._told.poll(seconds)

    def end(self) -> Outcome:
        """Kill it if it is still at work; the first call returns what it said, or why it ended."""
        outcome = Outcome()
        with suppress(OSError), self._told:  # an OSError: it has been closed before
            try:
                if self._told.poll():
                    outcome = self._told.recv()
            except EOFError:
                self._process.join(timeout=10)  # it may be printing a traceback
                outcome = Outcome(problem=_why_ended(self._process.exitcode or 0))
        self._process.kill()
        self._process.join()
        return outcome


ENDED_BY = {"SIGKILL": "perhaps because memory ran out", "SIGTERM": "another program ended it"}


def _why_ended(status: int) -> str:
    if status > 0:
        return "indexing stopped because of a bug in selhn; the terminal shows its traceback"
    name = signal.Signals(-status).name if status else "no message"
    why = ENDED_BY.get(name, "it has crashed")
    return f"indexing stopped ({name}, {why}): start `selhn photos` again to continue"


def _index(
    index: Path, folders: Sequence[Path], model: Path | str | None, work: Work | None, told: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that serves stops this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(AttributeError, OSError):
        os.nice(10)
    if work is None:
        from selhn.pictures.upkeep import bring_up_to_date

        work = partial(bring_up_to_date, model=model)
    try:
        outcome = Outcome([str(done) for done in work(index, folders)])
    except Locked as locked:
        outcome = Outcome(problem=str(locked), again=True)
    except (SelhnError, OSError) as error:
        full = is_disk_full(error)
        free = f"the disk is full, and indexing waits until {ENOUGH_SPACE // 2**20} MiB are free"
        words = free if full else "indexing stopped"
        outcome = Outcome(problem=f"{words}: {error}", again=full)
    told.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
