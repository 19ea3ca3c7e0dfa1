"""Folders from elsewhere with links and pipes planted in them: nothing outside is changed, read or named.

A case plants one thing and opens the folder by one door, in a process of its own.
"""

import faulthandler
import importlib
import json
import os
import random
import re
import shutil
import stat
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.doors import Door
from faults.given import Place, live_in, make_user
from faults.listening import Listening, innermost
from faults.planted import CANARY, KINDS, OUTSIDE, Watch, difference, plant

from selhn.base.errors import SelhnError
from selhn.pictures.decoder_processes import end_decoders

RANDOM = re.compile(r"[0-9a-f]{8,}|tmp\w{8}|-[a-z0-9_]{8}(/|$)")
"""In names that nobody can guess."""
RUNNING = re.compile(r"\d+")
"""Numbers in names: of files that differ in nothing else, one is tried."""
HARMFUL = ("folder", "missing")
STAGES = ("new", "ready", "previous")
"""Inside the hidden folder in which a folder is made."""
NAMING = "naming"
"""In the names of what is given without anything planted: its records name files outside."""
LIBRARY = "a library"
"""What opened a file, if it was not Python."""
NOTHING = "what its records name"


@dataclass(frozen=True)
class Case:
    """What is planted where, and the door."""

    given: str
    kind: str
    entry: str
    """Below the folder of everything."""
    door: Door

    def __str__(self) -> str:
        return f"{self.given}, {self.door.name}, {self.kind} at {self.entry or 'no place'}"


@dataclass(frozen=True)
class Found:
    """What came of a case: problems by their kind, each with the line of the package, if that is known."""

    case: Case
    problems: tuple[tuple[str, str, str], ...] = ()


class Strangers:
    """The drill, in a folder."""

    def __init__(self, root: Path, makers: Mapping[str, Callable[[Place], object]], seconds: float):
        self.makers, self.seconds = makers, seconds
        self.place = Place(root.resolve())
        self.kept = self.place.root / "kept"
        self.told, self.said = self.place.root / "told.jsonl", self.place.root / "said.txt"
        self.beside: dict[str, set[str]] = {}

    def make(self, given: str) -> None:
        """Make a folder as it is given, and keep it for all cases."""
        self._clean()
        self.place.outside.make()
        for folder in (self.place.user, self.place.given):
            folder.mkdir()
        problems = self._in_child(
            lambda: [make_user(self.place), self.makers[given](self.place)], listen=False
        )
        if problems:
            raise RuntimeError(f"{given} cannot be made: {problems}\n{self.said.read_text()}")
        for folder in (self.place.user, self.place.given, self.place.outside.path):
            shutil.copytree(folder, self.kept / given / folder.name, symlinks=True)

    def _clean(self) -> None:
        for folder in (self.place.user, self.place.given, self.place.outside.path):
            shutil.rmtree(folder, ignore_errors=True)

    def _fresh(self, given: str) -> None:
        self._clean()
        for folder in (self.place.user, self.place.given, self.place.outside.path):
            shutil.copytree(self.kept / given / folder.name, folder, symlinks=True)

    def entries(self, given: str) -> dict[str, Sequence[str]]:
        """What can be replaced, and by what: all that is there, at every depth, and what a door writes beside it.

        Names that earlier versions wrote, and that nobody writes now, are tried with what harms most.
        """
        if NAMING in given:
            return {}
        root = self.kept / given
        named = {
            str(path.relative_to(root)) for path in (root / "given").iterdir()
        }  # by the user, who may link
        there = [str(path.relative_to(root)) for path in sorted((root / "given").rglob("*"))]
        beside = sorted(self.beside.get(given, set()) - {*there})
        hidden = [str(Path(name).with_name(f".{Path(name).name}.partial")) for name in there]
        stages = [f"{name}/{stage}" for name in hidden if Path(name).name.count(".") == 2 for stage in STAGES]
        uploads = ["user/Pictures/uploads"] if given == "index" else []
        found: dict[str, Sequence[str]] = {}
        for names, kinds in (([*hidden, *stages], HARMFUL), (beside, KINDS), ([*there, *uploads], KINDS)):
            alike = {RUNNING.sub("0", name): name for name in reversed(names)}
            found |= dict.fromkeys(alike.values(), kinds)
        return {name: kinds for name, kinds in found.items() if name not in named}

    def honest(self, door: Door) -> str:
        """Open a folder in which nothing is planted; what is wrong with that. Notes the names that are written."""
        self._fresh(door.given)
        problems = self._in_child(lambda: door.do(self.place), door.status, noting=True)
        for line in self.told.read_text().splitlines():
            name = json.loads(line).get("wrote", "")
            if name and not RANDOM.search(name):
                self.beside.setdefault(door.given, set()).add(name)
        return "; ".join(" ".join(problem) for problem in problems)

    def cases(self, doors: Sequence[Door], seed: int) -> list[Case]:
        """Every entry with everything that can be planted, by every door; in an order that the seed decides."""
        chance, found = random.Random(seed), []
        for door in doors:
            if NAMING in door.given:
                found.append(Case(door.given, NOTHING, "", door))
            every = [(entry, kind) for entry, kinds in self.entries(door.given).items() for kind in kinds]
            chosen = chance.sample(every, round(door.share * len(every)))
            found += [Case(door.given, kind, entry, door) for entry, kind in chosen]
        chance.shuffle(found)
        return found

    def run(self, case: Case) -> Found | None:
        """Plant, open, and look at everything outside; None if this cannot be planted there.

        Another program of this machine may have looked at everything: what is only opened is tried again.
        """
        found = self._run(case)
        return self._run(case) if found and [where for _, where, _ in found.problems] == [LIBRARY] else found

    def _run(self, case: Case) -> Found | None:
        self._fresh(case.given)
        if case.entry and not plant(case.kind, self.place.root / case.entry, self.place.outside):
            return None
        before, mine = self.place.outside.tree(), self._written()
        watch = Watch(self.place.outside.path)
        problems = self._in_child(lambda: case.door.do(self.place), None)
        seen = list(watch.seen())
        changed = difference(before, self.place.outside.tree())
        known = {kind for kind, _, _ in problems}
        if changed:
            problems.append(("changed", self._where("changed", problems), changed))
        if seen and not known & {"opened"} and not changed:
            problems.append(("opened", LIBRARY, ", ".join(dict.fromkeys(name for _, name in seen))[:200]))
        # A file with a second name outside is a file like others to those who only read.
        if case.kind != "hard link" and (named := self._named(case, mine)):
            problems.append(("named", "", named))
        first = {(kind, where): what for kind, where, what in reversed(problems)}
        return Found(case, tuple((*place, what) for place, what in first.items()))

    @staticmethod
    def _where(kind: str, problems: Sequence[tuple[str, str, str]]) -> str:
        return next((where for kind, where, _ in problems if kind in ("opened", "touched")), "")

    def _written(self) -> dict[Path, tuple[int, int]]:
        """All files inside, with what tells whether they were written since."""
        found = {}
        for folder in (self.place.user, self.place.given):
            for path in folder.rglob("*"):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found[path] = (status.st_ino, status.st_mtime_ns)
        return found

    def _named(self, case: Case, before: dict[Path, tuple[int, int]]) -> str:
        """Where an answer or a written file has the content of a file outside, or its path."""
        words = [CANARY] if NAMING in case.given else [CANARY, OUTSIDE]
        content = {self.said: self.said.read_bytes()}
        content |= {
            path: path.read_bytes() for path, state in self._written().items() if before.get(path) != state
        }
        for path, data in content.items():
            for word in words:
                at = data.find(word.encode())
                if at >= 0:
                    around = data[max(0, at - 60) : at + 60].decode(errors="replace")
                    where = "the answer" if path == self.said else str(path.relative_to(self.place.root))
                    return f"{where}: {around!r}"
        return ""

    def _in_child(
        self, do: Any, status: int | None = 0, listen: bool = True, noting: bool = False
    ) -> list[tuple[str, str, str]]:
        """Do something as the user, in a process of its own; the problems that it tells."""
        self.told.write_text("")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._become_child(do, status, listen, noting)
        end = time.monotonic() + self.seconds + 10
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.killpg(child, 9)
            time.sleep(0.002)
        with suppress(ProcessLookupError):  # what it has started and not ended
            os.killpg(child, 9)
        problems = []
        for line in self.told.read_text().splitlines():
            told = json.loads(line)
            _import_all(told.get("modules", ()))
            if "kind" in told:
                problems.append((told["kind"], told["where"], told["what"]))
        if ended[1] and not problems:
            problems.append(("hangs", innermost(self.said.read_text(errors="replace")), "for too long"))
        return problems

    def _become_child(self, do: Any, status: int | None, listen: bool, noting: bool) -> None:
        told = os.open(self.told, os.O_WRONLY | os.O_APPEND)
        tell = lambda **content: os.write(told, (json.dumps(content) + "\n").encode())  # noqa: E731
        known = frozenset(sys.modules)
        try:
            os.setpgid(0, 0)
            said = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            silent = os.open(os.devnull, os.O_RDONLY)
            for own, number in ((silent, 0), (said, 1), (said, 2)):
                os.dup2(own, number)
            warnings.simplefilter("ignore")
            live_in(self.place)
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.stderr)
            if listen:
                sys.addaudithook(Listening(self.place, tell, noting))
            ended = do()
            if isinstance(ended, int) and status is not None and ended != status:
                tell(kind="status", where="", what=f"ends with {ended}: {self.said.read_text()[-300:]}")
        except (SelhnError, OSError) as error:
            print(error, flush=True)
            if status is not None:
                tell(kind="status", where="", what=f"{type(error).__name__}: {error}")
        except BaseException as error:
            tell(
                kind="traceback",
                where=innermost(traceback.format_exc()),
                what=f"{type(error).__name__}: {error}"[:200],
            )
        finally:
            tell(modules=[name for name in sys.modules if name not in known])
            sys.stdout.flush()
            end_decoders()
            os._exit(0)


def _import_all(names: Sequence[str]) -> None:
    """Import here what a process has imported, so that it is there in every process to come."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):
                importlib.import_module(name)


def some(cases: Sequence[Case], number: int) -> list[Case]:
    """So many of the cases, among them one of every door."""
    first = {case.door: case for case in cases}
    rest = [case for case in cases if case is not first[case.door]]
    return [*first.values(), *rest][:number]


def as_json(found: Sequence[Found]) -> list[dict[str, Any]]:
    return [
        {"door": one.case.door.name, "kind": one.case.kind, "entry": one.case.entry, "problems": one.problems}
        for one in found
    ]


def table(found: Sequence[Found]) -> str:
    """Cases and problems of each given folder, for docs/reliability.md."""
    lines = ["| folder | doors | entries | cases | with a problem |", "|---|--:|--:|--:|--:|"]
    for given in dict.fromkeys(one.case.given for one in found):
        own = [one for one in found if one.case.given == given]
        doors, entries = ({one.case.door.name for one in own}, {one.case.entry for one in own})
        bad = sum(bool(one.problems) for one in own)
        lines.append(f"| {given} | {len(doors)} | {len(entries)} | {len(own):,} | {bad:,} |")
    return "\n".join(lines)


def problems(found: Sequence[Found]) -> str:
    """Problems by the line of the package, what happened and the door, with one example each."""
    counts: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], str] = {}
    for one in found:
        for kind, where, what in one.problems:
            key = (where or "?", kind, f"{one.case.given}: {one.case.door.name}")
            counts[key] += 1
            example.setdefault(key, f"{one.case.kind} at {one.case.entry or 'no place'}: {what}")
    return "\n".join(
        f"{number:5}  {' | '.join(key)} | {example[key]}" for key, number in sorted(counts.items())
    )
