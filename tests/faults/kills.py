"""kill -9, a full disk or a power cut before any file operation of some work, which is then done again to its end.

Each point is tried in processes of its own: one that dies, one that looks at what is left and continues.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from faults.reader import digest
from faults.work import WORK

from selhn.base.errors import SelhnError

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
)
KINDS = ("kill", "power", "full")
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@dataclass(frozen=True)
class Point:
    """Where work is disturbed, and how."""

    work: str
    kind: str
    """kill; power: the same, and files that were not written through are empty; full: no space left; random: a kill at
    some time."""
    at: float
    """The number of the operation, from 1, or the share of the time it takes."""


@dataclass(frozen=True)
class Ended:
    """What came of a point; `problem` is empty if all is well."""

    point: Point
    problem: str = ""
    operation: str = ""
    """What was about to be done."""


class Disturbed:
    """Counts the file operations below a folder, and dies before one of them, or finds the disk full from it on."""

    def __init__(self, folder: Path, point: Point, told: Path):
        self.folder, self.point, self.told = str(folder), point, told
        self.count, self.synced, self.lock = 0, set(), threading.RLock()

    def start(self) -> None:
        if self.point.kind == "random":
            delay = threading.Thread(
                target=lambda: (time.sleep(self.point.at), self._die("some time")), daemon=True
            )
            delay.start()
            return
        sys.addaudithook(self._audit)
        os.fsync = self._counted(os.fsync, "fsync", self._sync)
        safetensors.torch.serialize_file = self._counted(safetensors.torch.serialize_file, "safetensors")
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate = self._counted(os.posix_fallocate, "posix_fallocate")

    def _audit(self, event: str, args: Sequence[Any]) -> None:
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & WRITES:
                return
        elif event in CHANGES:
            path = args[1] if event == "os.rename" else args[0]
        else:
            return
        try:
            name = os.fspath(path)
            name = name.decode() if isinstance(name, bytes) else name
        except TypeError:  # a file number
            return
        if os.path.abspath(name).startswith(self.folder):
            self._operation(f"{event.removeprefix('os.')} {os.path.relpath(name, self.folder)}")

    def _counted(self, function: Any, name: str, first: Any = None) -> Any:
        def call(*args: Any, **settings: Any) -> Any:
            self._operation(name)
            if first is not None:
                first(*args)
            return function(*args, **settings)

        return call

    def _sync(self, file: int) -> None:
        self.synced.add(os.fstat(file).st_ino)

    def _operation(self, what: str) -> None:
        with self.lock:
            self.count += 1
            if self.count < self.point.at:
                return
            if self.point.kind == "full":
                # A disk that is full still lets go of files.
                if self.count == self.point.at:
                    self.told.write_text(json.dumps({"operation": what}))
                if not what.startswith(("remove", "rmdir", "rename", "chmod")):
                    raise OSError(NO_ROOM.errno, NO_ROOM.strerror)
                return
            if self.count == self.point.at:
                self._die(what)

    def _die(self, what: str) -> None:
        self.point = Point(self.point.work, self.point.kind, 10**9)  # what is written here does not count
        self.told.write_text(json.dumps({"operation": what, "synced": sorted(self.synced)}))
        os.kill(os.getpid(), signal.SIGKILL)


def in_child(do: Any, said: Path) -> int:
    """Run something in a process of its own; its exit status, and its traceback in a file if it fails."""
    child = os.fork()
    if child == 0:
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            warnings.simplefilter("ignore")
            do()
            os._exit(0)
        except BaseException as error:
            ours = isinstance(error, (SelhnError, OSError))
            said.write_text(traceback.format_exc())
            os._exit(2 if ours else 3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def names_in(folder: Path) -> Counter[str]:
    """The files of a folder by their names, whose numbers do not count."""
    return Counter(re.sub(r"\d+", "0", path.relative_to(folder).as_posix()) for path in folder.rglob("*"))


class Drill:
    """Some work with a prepared folder, and what it ends with if nothing happens."""

    def __init__(self, name: str, folder: Path):
        self.name, self.work, self.folder = name, WORK[name], folder
        self.place = folder / "place"
        """Always the same, because paths are part of what is stored."""
        folder.mkdir(parents=True)
        self.said = folder / "said.txt"
        self.place.mkdir()
        self.work.prepare(self.place)
        shutil.copytree(self.place, folder / "prepared", symlinks=True)
        self.before = self.work.progress(self.place)
        self.work.do(
            self.place
        )  # here, so that what is imported on the way is there in every process to come
        self.work.result(self.place)
        self._fresh()
        start = time.monotonic()
        self.total, _ = self._disturbed(Point(name, "kill", 10**9), count=True)
        self.seconds = time.monotonic() - start
        problem, self.good = self._continued(None)
        if problem:
            raise RuntimeError(f"{name} fails undisturbed: {problem}")
        self.names = names_in(self.place)

    def _require(self, do: Any, what: str) -> None:
        if in_child(do, self.said) != 0:
            raise RuntimeError(f"{self.name}: {what} fails undisturbed:\n{self.said.read_text()}")

    def _fresh(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.folder / "prepared", self.place, symlinks=True)
        self.inodes = {path: path.stat().st_ino for path in self.place.rglob("*")}

    def _disturbed(self, point: Point, count: bool = False) -> tuple[int, dict[str, Any]]:
        """Work until the point; the exit status (or the number of operations), and what the process told."""
        told, counted = self.folder / "told.json", self.folder / "counted.txt"
        told.unlink(missing_ok=True)
        disturbed = Disturbed(self.place, point, told)

        def do() -> None:
            disturbed.start()
            self.work.do(self.place)
            counted.write_text(str(disturbed.count))

        if count:
            self._require(do, "work")
            return int(counted.read_text()), {}
        status = in_child(do, self.said)
        return status, json.loads(told.read_text()) if told.exists() else {}

    def _look(self, before: Any) -> None:
        """Open what is left, continue and read the end; says how far it came, in a file. For a process of its own."""
        stage = self.folder / "stage.txt"
        stage.write_text("lost")
        now = self.work.progress(self.place)
        assert before is None or before <= now, f"{before} was done, {now} is left"
        stage.write_text("does not continue")
        self.work.do(self.place)
        stage.write_text("the end cannot be read")
        end = digest(self.work.result(self.place))
        stage.write_text(f"done {end}")

    def _continued(self, before: Any) -> tuple[str, str]:
        """What is wrong with what is left, and what the work ends with."""
        status = in_child(lambda: self._look(before), self.said)
        stage = (self.folder / "stage.txt").read_text()
        return ("", stage.removeprefix("done ")) if status == 0 else (f"{stage}: {self._last()}", "")

    def run(self, point: Point) -> Ended:
        """Disturb the work, look at what is left, and continue."""
        self._fresh()
        if point.kind == "random":  # several in a row, each on what the one before left
            for share in (1.0, 0.7, 0.4):
                status, told = self._disturbed(Point(point.work, "random", share * point.at * self.seconds))
        else:
            status, told = self._disturbed(point)
        what = told.get("operation", "nothing: it was done before")
        if status == 3 or (point.kind != "full" and status not in (0, -signal.SIGKILL)):
            return Ended(point, f"ended with {status}: {self._last()}", what)
        if point.kind == "power":
            empty_unsynced(self.place, self.folder / "prepared", self.inodes, set(told.get("synced", ())))
        problem, end = self._continued(self.before)
        left = names_in(self.place) - self.names
        if not problem and end != self.good:
            problem = "ends with something else"
        elif not problem and left:
            problem = f"left behind: {sorted(left)[0]}"
        return Ended(point, problem, what)

    def _last(self) -> str:
        return self.said.read_text().strip().splitlines()[-1][:200] if self.said.exists() else ""


def empty_unsynced(place: Path, prepared: Path, inodes: Mapping[Path, int], synced: set[int]) -> None:
    """What a power cut may do to files that were written and never written through.

    New ones are there, but empty; those that were changed in place have what they had in common before and after.
    """
    for path in (path for path in place.rglob("*") if path.is_file()):
        old, inode, content = prepared / path.relative_to(place), path.stat().st_ino, path.read_bytes()
        before = old.read_bytes() if inodes.get(path) == inode else b""
        if inode not in synced and (inodes.get(path) != inode or before != content):
            os.truncate(path, len(os.path.commonprefix([before, content])))


def points(drill: Drill, kinds: Sequence[str], most: int | None, randoms: int, seed: int) -> list[Point]:
    """All operations of a work, or some of them spread over it, and kills at random times."""
    chance = random.Random(f"{seed} {drill.name}")
    every = range(1, drill.total + 1)
    found = []
    for kind in kinds:
        chosen = every if most is None or most >= len(every) else sorted(chance.sample(every, most))
        found += [Point(drill.name, kind, at) for at in chosen]
    return found + [Point(drill.name, "random", chance.random()) for _ in range(randoms)]


def run_drills(
    names: Sequence[str],
    kinds: Sequence[str] = KINDS,
    most: int | None = None,
    randoms: int = 0,
    seed: int = 0,
) -> Iterator[tuple[Drill, Ended]]:
    """Every point of every work."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            drill = Drill(name, Path(folder, name.replace(" ", "_")))
            for point in points(drill, kinds, most, randoms, seed):
                yield drill, drill.run(point)


def table(found: Sequence[Ended], totals: Mapping[str, int]) -> str:
    """How often each work was disturbed, for docs/reliability.md."""
    kinds = [kind for kind in (*KINDS, "random") if any(one.point.kind == kind for one in found)]
    lines = [
        f"| work | file operations | {' | '.join(kinds)} | with a loss |",
        f"|---|--:|{'--:|' * len(kinds)}--:|",
    ]
    for name in totals:
        own = [one for one in found if one.point.work == name]
        numbers = [sum(one.point.kind == kind for one in own) for kind in kinds]
        lines.append(
            f"| {name} | {totals[name]} | {' | '.join(map(str, numbers))} | {sum(bool(one.problem) for one in own)} |"
        )
    return "\n".join(lines)
