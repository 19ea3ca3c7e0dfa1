"""Damaged and forged files over every reader, in processes with limits of memory and time.

What may come of a case: an error of ours, the same content, or other content where no checksum covers the file.
Everything else is a finding: another error, more than 2 s or 1 GB, a silent change of what is sealed, a dead process.
"""

import errno
import json
import math
import os
import random
import re
import resource
import selectors
import shutil
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from faults.mutations import mutate
from faults.reader import Reader, digest, is_finite
from faults.readers import READERS

from selhn.base.errors import SelhnError

Table: TypeAlias = Mapping[str, Reader]
MOST_SECONDS, MOST_BYTES = 2.0, 2**30
HANG_SECONDS = 120.0
"""Without CPU time being used, on a busy machine."""
BROKEN = 99
"""How a worker ends if the drill itself is wrong."""
CORPUS = Path(__file__).parent / "corpus"
FILE_SYSTEM = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
"""Errors of the file system itself: a file is missing, or is a folder."""


@dataclass(frozen=True)
class Case:
    """A reader, and what is done to its example: drawn from a seed, or files of the corpus."""

    reader: str
    seed: str = ""
    files: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a case; a finding has a `fault`."""

    case: Case
    what: str
    """refused, equal, different, or a finding."""
    fault: str = ""
    where: str = ""
    """The exception, or a word for what happened, with the place in the package."""
    done: str = ""
    """What was done to which file."""
    seconds: float = 0.0
    peak: int = 0
    """Bytes beyond what the process had before."""

    @property
    def signature(self) -> str:
        return f"{self.case.reader}: {self.fault}: {self.where}"


def cases(number: int, seed: int, only: str = "", readers: Table = READERS) -> list[Case]:
    """So many cases over all readers, in the same order for the same seed."""
    chosen = {name: reader for name, reader in readers.items() if only in name}
    each = number / sum(reader.share for reader in chosen.values())
    every = [
        Case(name, f"{seed} {name} {n}")
        for name, own in chosen.items()
        for n in range(math.ceil(each * own.share))
    ]
    random.Random(seed).shuffle(every)
    return every


def corpus(folder: Path = CORPUS) -> list[Case]:
    """What was found before; the folder of a case is called after its reader."""
    names = {slug(name): name for name in READERS}
    return [Case(names[path.parent.name], files=path) for path in sorted(folder.glob("*/*"))]


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60]


class Bench:
    """Where cases are tried, in one process: the good examples in memory, and one folder for all cases."""

    def __init__(self, readers: Table, examples: Mapping[str, Mapping[str, bytes]], folder: Path):
        self.readers, self.examples, self.folder = readers, examples, folder
        self._good: dict[str, str] = {}

    def lay_out(self, name: str) -> Path:
        shutil.rmtree(self.folder, ignore_errors=True)
        for file, content in self.examples[name].items():
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_bytes(content)
        return self.folder

    def good(self, name: str) -> str:
        """What the undamaged example reads as."""
        if name not in self._good:
            try:
                self._good[name] = digest(self.readers[name].read(self.lay_out(name)))
            except SelhnError as refused:  # a lock is held whatever its file says
                self._good[name] = type(refused).__name__
        return self._good[name]

    def damage(self, case: Case) -> tuple[str, str, bool]:
        """Change the example; returns what was done, to which file, and whether its checksums fit again."""
        folder, reader = self.lay_out(case.reader), self.readers[case.reader]
        if case.files is not None:
            found = sorted(path for path in case.files.rglob("*") if path.is_file())
            for path in found:
                target = folder / path.relative_to(case.files)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            words, file = "corpus", found[0].relative_to(case.files).as_posix()
            forge = case.files.name.startswith("forged")
        else:
            draw = random.Random(case.seed)
            words, file = mutate(folder, draw)
            forge = draw.random() < 0.5
        if reader.seal is None or not forge:
            return words, file, False
        try:
            reader.seal(folder)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            AttributeError,
        ):  # too damaged to seal
            return words, file, False
        return words, file, True

    def run(self, case: Case) -> Outcome:
        reader, good = self.readers[case.reader], self.good(case.reader)
        words, file, forged = self.damage(case)
        done = f"{file}: {words}{', sealed again' if forged else ''}"
        before, start = _reset_peak(), _cpu(os.getpid())
        what, fault, where = self._read(reader, good, file, forged)
        seconds, peak = _cpu(os.getpid()) - start, max(0, _peak() - before)
        if not fault and seconds > MOST_SECONDS:
            fault, where = "slow", f"over {MOST_SECONDS:.0f} s"
        if not fault and peak > MOST_BYTES:
            fault, where = "large", "over 1 GB"
        return Outcome(case, what, fault, where, done, round(seconds, 2), peak)

    def _read(self, reader: Reader, good: str, file: str, forged: bool) -> tuple[str, str, str]:
        """What came of reading, and what is wrong with that."""
        sealed = reader.sealed(self.folder / file)  # before a reader writes there
        try:
            content = reader.read(self.folder)
            found = digest(content)
        except SelhnError as refused:
            return "refused", "", type(refused).__name__
        except OSError as error:
            if error.errno in FILE_SYSTEM:
                return "refused", "", type(error).__name__
            return "raw", "raw error", _place(error)
        except MemoryError as error:
            return "raw", "memory", _place(error)
        except Exception as error:  # what is looked for
            large = "can't allocate memory" in str(error) or "not enough memory" in str(error)
            return "raw", "memory" if large else "raw error", _place(error)
        if found == good:
            return "equal", "", ""
        if not forged and sealed:
            return "different", "silent", "another content despite a checksum"
        if reader.finite and not is_finite(content):
            return "different", "not finite", "NaN or infinity was read"
        return "different", "", ""


def _place(error: BaseException) -> str:
    """The exception and the last line of the package that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/selhn/" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    file = Path(last.filename)
    return f"{type(error).__name__} in {file.parent.name}/{file.name}, {last.name}"


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) * 1024


def _size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _work(pipe: int, bench: Bench, own: Sequence[tuple[int, Case]]) -> None:
    """A worker: tries its cases one by one, and says when each begins and what came of it."""
    out = os.fdopen(pipe, "w", buffering=1)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    warnings.simplefilter("ignore")
    for _, case in own:  # what good examples need is not counted
        bench.good(case.reader)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_size() + MOST_BYTES, resource.RLIM_INFINITY))
    for number, case in own:
        out.write(json.dumps([number, _cpu(os.getpid())]) + "\n")
        found = bench.run(case)
        out.write(
            json.dumps([number, found.what, found.fault, found.where, found.done, found.seconds, found.peak])
            + "\n"
        )


@dataclass
class _Worker:
    pid: int
    pipe: Any
    left: list[tuple[int, Case]]
    number: int | None = None
    """Of the case in hand."""
    since: float = 0.0
    """CPU time at which it began."""
    heard: float = 0.0
    """When it last said something."""
    text: str = ""


def run_cases(
    every: Sequence[Case], folder: Path, workers: int = 2, readers: Table = READERS
) -> Iterator[Outcome]:
    """Try all cases; a worker that dies or takes too long is replaced."""
    examples = make_examples(readers, {case.reader for case in every}, folder / "examples")
    own = [list(enumerate(every))[n::workers] for n in range(workers)]
    selector, number = selectors.DefaultSelector(), 0

    def start(left: list[tuple[int, Case]]) -> None:
        nonlocal number
        if not left:
            return
        number += 1
        bench = Bench(readers, examples, folder / f"worker{number}")
        source, target = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(source)
                _work(target, bench, left)
                os._exit(0)
            except BaseException:
                (folder / "broken.txt").write_text(traceback.format_exc())
                os._exit(BROKEN)
        os.close(target)
        os.set_blocking(source, False)
        selector.register(source, selectors.EVENT_READ, _Worker(pid, source, left, heard=time.monotonic()))

    def end(worker: _Worker, why: str = "") -> Iterator[Outcome]:
        """Bury a worker; what it had in hand is a finding."""
        selector.unregister(worker.pipe)
        os.close(worker.pipe)
        if why:
            os.kill(worker.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if status == BROKEN:
            raise RuntimeError((folder / "broken.txt").read_text())
        if worker.number is not None:
            case = every[worker.number]
            bench = Bench(readers, examples, folder / "again")
            words, file, forged = bench.damage(case)
            done = f"{file}: {words}{', sealed again' if forged else ''}"
            fault = "slow" if why else "died"
            yield Outcome(
                case, "killed", fault, why or f"signal {-status}" if status < 0 else f"exit {status}", done
            )
            worker.left = [one for one in worker.left if one[0] != worker.number]
        elif worker.left:
            raise RuntimeError(f"a worker ended with {status} between cases")
        start(worker.left)

    def listen() -> Iterator[Outcome]:
        for key, _ in selector.select(0.2):
            worker = key.data
            chunk = os.read(worker.pipe, 65536)
            worker.heard, worker.text = time.monotonic(), worker.text + chunk.decode()
            *lines, worker.text = worker.text.split("\n")
            for line in lines:
                said = json.loads(line)
                if len(said) == 2:
                    worker.number, worker.since = said
                    continue
                yield Outcome(every[said[0]], *said[1:])
                worker.left, worker.number = [one for one in worker.left if one[0] != said[0]], None
            if not chunk:
                yield from end(worker)
        for worker in [key.data for key in list(selector.get_map().values())]:
            if worker.number is not None and _cpu(worker.pid) - worker.since > MOST_SECONDS + 1:
                yield from end(worker, f"over {MOST_SECONDS:.0f} s, stopped")
            elif time.monotonic() - worker.heard > HANG_SECONDS:
                yield from end(worker, "hangs")

    for left in own:
        start(left)
    try:
        while selector.get_map():
            yield from listen()
    finally:
        for worker in [key.data for key in selector.get_map().values()]:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)


def _cpu(pid: int) -> float:
    """CPU time of a process and of those that it has started: pictures are decoded in others."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(
        _cpu(int(child)) for child in children
    )


def make_examples(readers: Table, names: set[str], folder: Path) -> dict[str, dict[str, bytes]]:
    """The files of good examples; made once, before there are workers."""
    examples, made = {}, {}
    for name in sorted(names):
        make = readers[name].make
        if make not in made:
            place = folder / slug(name)
            place.mkdir(parents=True)
            make(place)
            made[make] = {
                path.relative_to(place).as_posix(): path.read_bytes()
                for path in sorted(place.rglob("*"))
                if path.is_file()
            }
        examples[name] = made[make]
    return examples


def table(found: Sequence[Outcome]) -> str:
    """How many cases each reader had, and what came of them, for docs/reliability.md."""
    lines = [
        "| reader | cases | refused | same | other content | findings | slowest, s | most, MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    names = [name for name in READERS if any(one.case.reader == name for one in found)]
    for name in [*names, ""]:
        own = [one for one in found if name in ("", one.case.reader)]
        counted = Counter("finding" if one.fault else one.what for one in own)
        numbers = [len(own), *(counted[word] for word in ("refused", "equal", "different", "finding"))]
        slowest, most = max(one.seconds for one in own), max(one.peak for one in own) // 2**20
        lines.append(
            f"| {name or '**all**'} | {' | '.join(f'{number:,}' for number in numbers)} | {slowest:.1f} | {most} |"
        )
    return "\n".join(lines)


def keep(found: Sequence[Outcome], folder: Path, work: Path) -> None:
    """Add the first case of every kind of finding to the corpus: the file that was changed."""
    seen: set[str] = set()
    for one in found:
        if not one.fault or one.case.files is not None or one.signature in seen:
            continue
        seen.add(one.signature)
        bench = Bench(
            READERS, make_examples(READERS, {one.case.reader}, work / f"kept{len(seen)}"), work / "kept"
        )
        _, file, forged = bench.damage(one.case)
        if (bench.folder / file).is_file():
            name = slug(f"{'forged ' if forged else ''}{one.where}")
            target = folder / slug(one.case.reader) / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bench.folder / file, target)


def say(found: Sequence[Outcome]) -> str:
    """The kinds of findings, each with its number and an example."""
    kinds: dict[str, list[Outcome]] = {}
    for one in found:
        if one.fault:
            kinds.setdefault(one.signature, []).append(one)
    return "\n".join(
        f"{len(own):4} {kind}\n       e.g. [{own[0].case.seed or own[0].case.files}] {own[0].done}"
        for kind, own in sorted(kinds.items())
    )
