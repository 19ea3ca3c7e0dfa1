"""The search service under load from another process on this machine, beside the bare call of the model.

    python benchmarks/service.py                      20 seconds per row, example pictures, ready model
    python benchmarks/service.py --seconds 120 --clients 16 64

The server is a process of its own with one thread for torch, the clients are in this one, each with one connection and
one question at a time: captions of the example pictures, none twice in a row. `bare` is the same question asked of the
same index by a function call, with nothing between; with one client a call and a request take turns, and rows with more
clients are compared with these calls. `alone` has the batches of the service cut to one question. Memory is that of the
server (RSS) when all is warm, half way and at the end of a row.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from report import environment, save, table

K = 24


def serve_examples(most: int) -> None:
    """The server: says its port, then answers."""
    import torch

    from selhn.pictures.indexing import open_examples
    from selhn.serve.app import create_app
    from selhn.serve.batching import Batcher
    from selhn.serve.collection import Collection
    from selhn.serve.service import PICTURES_AT_ONCE, Service
    from selhn.serve.start import listen, run_server

    torch.set_num_threads(1)
    collection = Collection(open_examples())
    service = Service(collection)
    thread = ThreadPoolExecutor(1)
    service.queries = Batcher(collection.answer, most, service.metrics.batches.observe, thread)
    service.pictures = Batcher(
        lambda prepared, wanted: collection.embed(prepared), min(most, PICTURES_AT_ONCE), thread=thread
    )
    listening = listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    run_server(create_app(service), listening, service.limits)


@dataclass
class Load:
    """What some clients saw."""

    times: list[float] = field(default_factory=list)
    errors: int = 0
    bare: list[float] = field(default_factory=list)
    bare_cpu: float = 0.0
    cpu: float = 0.0
    seconds: float = 0.0
    memory: list[float] = field(default_factory=list)
    batch: float = 0.0

    def row(self, kind: str, clients: int, bare: "Load") -> list[str]:
        """A line of the table, beside the bare calls of another."""
        p50, p99 = percentiles(self.times)
        bare50, bare99 = percentiles(bare.bare)
        return [
            kind, str(clients), f"{len(self.times):,}", f"{len(self.times) / self.seconds:.1f}",
            f"{p50:.1f}", f"{p99:.1f}", f"{bare50:.1f}", f"{bare99:.1f}", f"{p50 / bare50:.2f}",
            f"{1e3 * self.cpu / len(self.times):.1f}", f"{1e3 * bare.bare_cpu / len(bare.bare):.1f}",
            f"{self.batch:.1f}", str(self.errors), " ".join(f"{own:.0f}" for own in self.memory),
        ]  # fmt: skip


def percentiles(times: list[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    ordered = sorted(times)
    return statistics.median(ordered) * 1e3, ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3


class Server:
    """The server in a process of its own."""

    def __init__(self, most: int):
        command = [sys.executable, __file__, "--serve", str(most)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.strip().isdigit())
        self.port = int(line)

    def memory(self) -> float:
        """MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu(self) -> float:
        """Seconds of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """As Ctrl-C would."""
        self.process.terminate()
        self.process.wait(timeout=30)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """One request on an open connection; a client that does as little as possible, for it shares the machine."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
    return int(head.split()[1]), await reader.readexactly(length)


async def client(
    port: int, requests: itertools.cycle, load: Load, until: float, bare: Callable[[int], object] | None
) -> None:
    """One connection, one question after another; a bare call between them, if given."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < until:
        status, content = await exchange(reader, writer, next(requests))
        load.times.append(time.perf_counter() - start)
        load.errors += status != 200 or not json.loads(content)["answers"]
        if bare is not None:
            start, used = time.perf_counter(), time.process_time()
            bare(len(load.bare))
            load.bare.append(time.perf_counter() - start)
            load.bare_cpu += time.process_time() - used
    writer.close()


async def batches(port: int) -> tuple[float, float]:
    """How many queries the server has answered, and in how many batches."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _, content = await exchange(reader, writer, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    writer.close()
    found = dict(re.findall(r"selhn_batch_queries_(sum|count) (\S+)", content.decode()))
    return float(found["sum"]), float(found["count"])


async def under_load(
    server: Server, requests: list[bytes], clients: int, seconds: float, bare: Callable[[int], object] | None
) -> Load:
    """All clients for some seconds, after some that are not counted."""
    for lasting in (min(5.0, seconds), seconds):
        load, before, start = Load(), await batches(server.port), time.perf_counter()
        load.memory.append(server.memory())
        used = server.cpu()
        asking = [client(server.port, itertools.cycle(requests[n:] + requests[:n]), load, start + lasting, bare)
                  for n in range(clients)]  # fmt: skip
        both = asyncio.gather(*asking)
        if bare is None:
            await asyncio.sleep(lasting / 2)
            load.memory.append(server.memory())
        await both
        load.seconds = time.perf_counter() - start - sum(load.bare)
        load.cpu = server.cpu() - used
        load.memory.append(server.memory())
    queries, number = (after - own for after, own in zip(await batches(server.port), before))
    load.batch = queries / number
    return load


def get(text: str) -> bytes:
    """A question by a sentence."""
    return f"GET /api/v1/search?text={quote(text)}&k={K} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(content: bytes) -> bytes:
    """A question by a picture."""
    head = f"POST /api/v1/search?k={K} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def bare_calls(texts: list[str], pictures: list[bytes]) -> dict[str, Callable[[int], object]]:
    """The calls that a service makes, by a sentence and by a picture, each given a number that chooses."""
    import torch

    from selhn.pictures.indexing import open_examples
    from selhn.search import Query
    from selhn.serve.collection import Collection

    torch.set_num_threads(1)
    collection = Collection(open_examples())

    def by_picture(row: int) -> object:
        prepared = collection.library.prepare(pictures[row % len(pictures)], 10**8)
        (vector,) = collection.embed([prepared])
        return collection.answer([Query(image=vector, k=K)])

    return {"text": lambda row: collection.index.search(texts[row % len(texts)], k=K), "picture": by_picture}


def measure(seconds: float, clients: list[int]) -> list[list[str]]:
    """All rows."""
    from selhn.pictures.examples import ANNOTATIONS, PICTURES

    entries = json.loads(ANNOTATIONS.read_text(encoding="utf-8"))
    texts = [caption for entry in entries for caption in entry["captions"]]
    pictures = [(PICTURES / entry["file"]).read_bytes() for entry in entries]
    calls = bare_calls(texts, pictures)
    questions = {"text": [get(text) for text in texts], "picture": [post(content) for content in pictures]}
    cases = [("text", 64, number) for number in (1, *clients)]
    cases += [("picture", 64, 1), ("picture", 64, 8), ("text", 1, clients[-1])]
    rows: list[list[str]] = []
    bare: dict[str, Load] = {}
    server, running = None, 0
    for kind, most, number in cases:
        if server is None or running != most:
            if server is not None:
                server.stop()
            server, running = Server(most), most
        call = calls[kind] if number == 1 else None
        load = asyncio.run(under_load(server, questions[kind], number, seconds, call))
        if load.bare:
            bare[kind] = load
        rows.append(load.row(kind if most > 1 else f"{kind}, alone", number, bare[kind]))
        print(" | ".join(rows[-1]), flush=True)
    assert server is not None
    server.stop()
    return rows


def main() -> None:
    """Measure, or be the server that is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of a row")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[8, 32], help="that ask at the same time, beside one"
    )
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    if arguments.serve:
        serve_examples(arguments.serve)
        return
    header = ["question", "clients", "requests", "requests/s", "p50, ms", "p99, ms", "bare p50", "bare p99",
              "p50 ratio", "CPU, ms", "bare CPU", "in a batch", "errors", "MiB"]  # fmt: skip
    rows = measure(arguments.seconds, arguments.clients)
    note = (
        "bare: the same question by a function call, one at a time, in turns with the requests of one client. ratio:\n"
        "p50 of the service over that; with n clients on one core it could not be below n without batches. CPU: that\n"
        "of the server for a request, and of a bare call, which other work on the machine hardly changes. alone:\n"
        "batches of one. MiB: memory of the server when warm, half way and at the end of a row."
    )
    text = f"# The service under load: 76 pictures, k = {K}\n\n{environment()}\n\n{table(header, rows)}\n\n{note}"
    print(f"\n{text}\n\nwritten to {save('service-cpu', text, arguments.out)}")


if __name__ == "__main__":
    main()
