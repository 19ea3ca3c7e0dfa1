"""Keeps an index up to date while it is served, and reports how far it is."""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from selhn.base.progress import Progress
from selhn.pictures.how_far import PROGRESS_FILE, HowFar
from selhn.pictures.upkeep import fingerprint, has_pictures
from selhn.serve.indexer import ENOUGH_SPACE, Indexer, Outcome, Work

LOOK_EVERY, SHARE = 2.0, 50
"""Seconds between two checks of the folders; at most one fiftieth of the time is spent on checks."""
QUIET, LONGEST_CHANGE = 1.0, 30.0
"""Seconds without a change before a folder is indexed again, and the longest wait for that."""
TRY_AGAIN = 5.0
LOOKING = "Looking for new pictures"
State = Literal["idle", "indexing", "waiting"]


class Keeper:
    """Indexes folders once, or with `watch` whenever they change.

    Args:
        say: called with lines for the person at the terminal.
        first: a process that was started early.
        model: the model of the index, if the index does not have it.
        work: what each process calls, in place of `bring_up_to_date`.
    """

    def __init__(
        self,
        index: Path,
        folders: Sequence[Path],
        watch: bool = False,
        *,
        say: Callable[[str], None] = print,
        first: Indexer | None = None,
        model: Path | str | None = None,
        work: Work | None = None,
    ):
        self.index, self.folders, self.watch = index, folders, watch
        self.state: State = "indexing"
        self.message = ""
        self._say, self._indexer = say, first
        self._start = partial(Indexer, index, folders, model, work)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process that indexes; nothing that was written is lost."""
        self._stopping.set()
        self._thread.join()

    def told(self) -> tuple[State, HowFar, str]:
        """Whether pictures are being indexed now, how far that is, and a sentence."""
        state, message = self.state, self.message
        if state == "idle":  # `selhn index` may be running in another terminal
            state, far, words = indexing(self.index)
            return state, far, words or message
        far = self._how_far() or HowFar()
        return state, far, message or (str(far) if far.total else LOOKING)

    def _how_far(self) -> HowFar | None:
        """What the process says; None before it has begun with a folder, or if there is none."""
        found, indexer = HowFar.read(self.index), self._indexer
        return found if indexer is not None and found is not None and found.process == indexer.pid else None

    def _keep(self) -> None:
        while not self._stopping.is_set():
            indexed = self._look() if self.watch else {}
            self.state, self.message = "indexing", ""
            outcome = self._run(self._indexer or self._start())
            if self._stopping.is_set():
                return
            for line in outcome.said:
                self._say(line)
            self._settle(outcome, [folder for folder in self.folders if not has_pictures(folder)])
            if outcome.again:
                self._wait_for_space()
            elif self.watch:
                self._wait_for_change(indexed)
            else:
                return

    def _run(self, indexer: Indexer) -> Outcome:
        """One process from its start to its end."""
        self._indexer, line = indexer, Progress(1)
        while not indexer.wait(0.2) and not self._stopping.is_set():
            if (far := self._how_far()) is not None:
                line = line if line.total == far.total else Progress(max(1, far.total), far.done)
                line.step("pictures", far.done - line.done)
        outcome = indexer.end()
        line.clear()
        self._indexer = None
        with suppress(OSError):  # it may have been killed
            (self.index / PROGRESS_FILE).unlink(missing_ok=True)
        return outcome

    def _settle(self, outcome: Outcome, absent: Collection[Path]) -> None:
        """Say what is wrong, once."""
        message = outcome.problem
        if not message and absent:
            names = " and ".join(map(str, absent))
            message = f"{names}: missing or empty now; its pictures stay in the index"
            message += ", and it is read when it is back" if self.watch else ""
        waiting = outcome.again or (self.watch and bool(absent))
        self.message, self.state = message, "waiting" if waiting else "idle"
        if message:
            self._say(f"selhn: {message}")

    def _look(self) -> dict[Path, int | None]:
        return {folder: fingerprint(folder) for folder in self.folders}

    def _wait_for_change(self, indexed: dict[Path, int | None]) -> None:
        """Return when a folder has changed and then stayed the same. A vanished folder is only reported."""
        absent = {folder for folder, found in indexed.items() if found is None}
        last, changed, pause = indexed, 0.0, LOOK_EVERY
        while not self._stopping.wait(pause):
            began = time.monotonic()
            now = self._look()
            pause = max(LOOK_EVERY, SHARE * (time.monotonic() - began))
            gone = {folder for folder, found in now.items() if found is None}
            if gone != absent:
                self._settle(Outcome(), gone)
                absent = gone
            if any(found not in (None, indexed[folder]) for folder, found in now.items()):
                changed = changed or began
                if now == last or began - changed > LONGEST_CHANGE:
                    return
                pause = QUIET
            last = now

    def _wait_for_space(self) -> None:
        """Wait after a full disk, or while another process writes."""
        while not self._stopping.wait(TRY_AGAIN):
            is_full = shutil.disk_usage(self.index).free < ENOUGH_SPACE
            if not is_full and HowFar.read(self.index) is None:
                return


def indexing(index: Path | str | None) -> tuple[State, HowFar, str]:
    """Like `Keeper.told`, for an index that only other processes write."""
    far = HowFar.read(index)
    return ("idle", HowFar(), "") if far is None else ("indexing", far, str(far))
