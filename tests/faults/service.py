"""The service under attack: idle connections, slow clients and pictures that are bombs, while others ask in earnest.

Who asks in earnest does what any HTTP client does: connects again if an idle connection was closed, and waits if it is
told to by a 503. Everything else that happens to it counts as a failure.
"""

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from picture_cases import encoded, photo, scan_bomb

TESTS = Path(__file__).parents[1]
TINY = [sys.executable, str(TESTS / "serve" / "tiny.py")]
EXAMPLES = [sys.executable, "-m", "selhn", "serve", "--examples", "--port", "0", "--no-token"]
AGAIN = 5.0
"""Seconds until an idle connection that was closed is opened again."""
SENTENCES = (
    "two dogs in the snow",
    "a man on a surfboard",
    "a red bus in a street",
    "people at a table with food",
)
MIB = 2**20


@dataclass
class Attack:
    """How many clients there are of each kind, and how long."""

    idle: int = 2000
    slow: int = 64
    bombs: int = 50
    """JPEGs of 2,000 scans."""
    heavy: int = 4
    """JPEGs that need as much CPU time as a picture may."""
    good: int = 32
    seconds: float = 60.0
    pause: float = 1.0
    """Between two questions of a good client."""
    descriptors: int = 1024
    """File descriptors that the service may have."""
    examples: bool = True
    """The example pictures with the ready model, else a few small ones with a small model."""


@dataclass
class Seen:
    """What happened."""

    times: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    """MiB of the service once a second."""
    decoders: list[float] = field(default_factory=list)
    """MiB of its decoders."""
    descriptors: int = 0
    stopped: float = 0.0
    """Seconds from SIGTERM to the end."""
    log: list[str] = field(default_factory=list)

    def quarters(self) -> list[float]:
        """The most memory in each quarter of the time."""
        ends = [len(self.memory) * quarter // 4 for quarter in range(5)]
        return [max(self.memory[first:end], default=0.0) for first, end in zip(ends, ends[1:])]

    def problems(self) -> list[str]:
        _, early, *_, late = self.quarters()
        checks = {
            f"{len(self.failures)} good requests failed: {self.failures[:3]}": not self.failures,
            f"memory grew from {early:.0f} to {late:.0f} MiB": late <= 1.1 * early + 20,
            f"the log has {len(self.log)} lines": len(self.log) <= 20,
            f"SIGTERM took {self.stopped:.1f} s": self.stopped <= 3,
            "nobody was answered": bool(self.times),
        }
        return [words for words, is_right in checks.items() if not is_right]

    def lines(self, quiet: "Seen") -> list[str]:
        """A table, beside it what the same clients saw when they were alone."""
        rows = [
            "| question | answered | p50 ms | p99 ms | alone: p50 | p99 |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for kind, times in sorted(self.times.items()):
            numbers = *percentiles(times), *percentiles(quiet.times.get(kind, []))
            rows.append(
                f"| {kind} | {len(times):,} | " + " | ".join(f"{1e3 * one:.0f}" for one in numbers) + " |"
            )
        told = ", ".join(f"{number:,} {words}" for words, number in sorted(self.said.items()))
        return [
            *rows,
            "",
            f"{len(self.failures)} failures; {told}",
            f"memory: {', '.join(f'{one:.0f}' for one in self.quarters())} MiB at most in each quarter of the time, "
            f"its decoders {max(self.decoders, default=0):.0f}; {self.descriptors} descriptors open at most",
            f"log: {len(self.log)} lines; SIGTERM to the end: {self.stopped:.1f} s",
        ]


def percentiles(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times) or [float("nan")]
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


class Client:
    """An HTTP connection that is kept, and opened again if it was closed."""

    def __init__(self, port: int):
        self.port, self.streams = port, None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and content; raises ConnectionError or EOFError if there is no answer."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        take, give = self.streams
        try:
            kind = "Content-Type: image/jpeg\r\n" if body else ""
            give.write(
                f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n\r\n".encode()
            )
            give.write(body)
            head = (await take.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            content = await take.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))
        except BaseException:
            self.close()
            raise
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), content

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


async def good(number: int, port: int, pictures: list[str], seen: Seen, attack: Attack) -> None:
    """Ask one thing after another, in turns."""
    client = Client(port)
    upload = encoded(photo(number, (320, 240)))
    questions = [
        ("search", "GET", f"/api/v1/search?text={quote(SENTENCES[number % len(SENTENCES)])}&k=10", b""),
        ("picture", "GET", f"/api/v1/picture?size=320&id={quote(pictures[number % len(pictures)])}", b""),
        ("health", "GET", "/api/v1/health", b""),
        ("search", "GET", f"/api/v1/search?text={quote(SENTENCES[(number + 1) % len(SENTENCES)])}&k=10", b""),
        ("search by picture", "POST", "/api/v1/search?k=10", upload),
        ("page", "GET", "/", b""),
    ]
    await asyncio.sleep(attack.pause * number / attack.good)
    while True:
        for kind, method, path, body in questions:
            started = time.monotonic()
            for _ in range(20):
                try:
                    status, _ = await client.ask(method, path, body)
                except (OSError, EOFError):
                    seen.said["connections of good clients closed"] += 1
                    continue
                if status != 503:
                    break
                seen.said[f"{kind}: 503, asked again after a second"] += 1
                await asyncio.sleep(1)
            else:
                status = 0
            if status == 200:
                seen.times.setdefault(kind, []).append(time.monotonic() - started)
            else:
                seen.failures.append(f"{kind}: {status}")
            await asyncio.sleep(attack.pause)


async def idle(number: int, port: int, seen: Seen) -> None:
    """Hold a connection; every other one sends a head without an end."""
    while True:
        with contextlib.suppress(OSError):
            take, give = await asyncio.open_connection("127.0.0.1", port)
            try:
                if number % 2:
                    give.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                await take.read(1)
            finally:
                give.close()
        seen.said["idle connections closed"] += 1
        await asyncio.sleep(AGAIN)


async def slow(port: int, seen: Seen) -> None:
    """Send a picture byte by byte."""
    while True:
        with contextlib.suppress(OSError):
            take, give = await asyncio.open_connection("127.0.0.1", port)
            give.write(b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n")
            give.write(b"Content-Length: 100000\r\n\r\n")
            answer = asyncio.ensure_future(take.read(12))
            try:
                while not answer.done():
                    give.write(b"x")
                    await asyncio.wait([answer], timeout=0.5)
                seen.said[f"slow clients: {answer.result()[9:].decode() or 'closed'}"] += 1
            finally:
                answer.cancel()
                give.close()
        await asyncio.sleep(1)


async def bomb(content: bytes, port: int, seen: Seen) -> None:
    """Search with a picture that takes as long to decode as it can."""
    while True:
        client = Client(port)
        with contextlib.suppress(OSError, EOFError):
            status, _ = await client.ask("POST", "/api/v1/search?k=1", content)
            seen.said[f"bombs: {status}"] += 1
        client.close()
        await asyncio.sleep(1)


async def watch(server: int, seen: Seen) -> None:
    while True:
        seen.memory.append(resident(server))
        own = Path(f"/proc/{server}/task").glob("*/children")
        seen.decoders.append(sum(resident(int(child)) for one in own for child in one.read_text().split()))
        seen.descriptors = max(seen.descriptors, len(os.listdir(f"/proc/{server}/fd")))
        await asyncio.sleep(1)


def resident(process: int) -> float:
    """MiB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / MIB
    return 0.0


async def drill(attack: Attack, server: subprocess.Popen, port: int) -> tuple[Seen, Seen]:
    """The good clients alone for a fourth of the time, then all of them, and SIGTERM in the middle of it."""
    first = Client(port)
    status, content = await first.ask("GET", "/api/v1/items?number=50")
    assert status == 200, content
    pictures = re.findall(r'"id":"([^"]+)"', content.decode())
    bombs = [scan_bomb(2000, 2400, 1800)] * attack.bombs + [scan_bomb(100, 7000, 5600)] * attack.heavy
    found = []
    for share, is_attack in ((0.25, False), (1.0, True)):
        seen = Seen()
        tasks = [
            watch(server.pid, seen),
            *(good(n, port, pictures, seen, attack) for n in range(attack.good)),
        ]
        number_good = len(tasks)
        if is_attack:
            tasks += [idle(number, port, seen) for number in range(attack.idle)]
            tasks += [slow(port, seen) for _ in range(attack.slow)]
            tasks += [bomb(content, port, seen) for content in bombs]
        running = [asyncio.ensure_future(task) for task in tasks]
        done, _ = await asyncio.wait(
            running, timeout=share * attack.seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        for task in running[:number_good]:
            task.cancel()
        if is_attack:
            server.send_signal(signal.SIGTERM)
            started = time.monotonic()
            while server.poll() is None and time.monotonic() - started < 30:
                await asyncio.sleep(0.05)
            seen.stopped = time.monotonic() - started
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        found.append(seen)
    return found[0], found[1]


def run(attack: Attack) -> tuple[Seen, Seen]:
    """Start a service, attack it, stop it; what the good clients saw alone, and during the attack."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = attack.idle + attack.slow + attack.bombs + attack.heavy + attack.good + 64
    assert most == resource.RLIM_INFINITY or most >= wanted, (
        f"needs {wanted} file descriptors: `ulimit -Hn` is {most}"
    )
    with tempfile.TemporaryDirectory() as work, open(Path(work, "errors"), "w+") as errors:
        command = EXAMPLES if attack.examples else [*TINY, work]
        paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), str(TESTS / "serve")])
        server = subprocess.Popen(
            ["prlimit", f"--nofile={attack.descriptors}:{attack.descriptors}", *command],
            stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else most, most)
            )
            line = server.stdout.readline()
            assert line, Path(work, "errors").read_text()
            alone, attacked = asyncio.run(drill(attack, server, int(re.search(r"(\d+)$", line.strip())[1])))
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
        attacked.log = Path(work, "errors").read_text().splitlines()
    return alone, attacked
