"""Ten best images among many: the same index in a folder, in Milvus and in PostgreSQL, beside plain torch, in one run.

    python benchmarks/stores.py                                  10,000 x 512, what can be started here
    unshare --net sh -c 'ip link set lo up && exec taskset -c 0 python benchmarks/stores.py --sizes 10000 100000'
    ... --sizes 1000000 --width 128 --stores Milvus --timeout 600 --out stores-cpu-million

Servers are started and ended as tests do (`tests/servers.py`); that of Milvus only where there is nothing but
loopback. The vectors are those of `search.py`. Plain torch is `(images @ query).topk(10)` in memory, measured in turn
with each; it also says which ten are right. A query is an item (`like=`), whose vector is looked up first.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import search
import torch
from report import environment, save, table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from servers import Milvus, Postgres, servers_of

from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item, Query
from selhn.search.stores import milvus_rows
from selhn.text import Vocabulary

K, BATCH, REPEATS = 10, 64, 5
MOST_OF_LITE = 10_000
POSTGRES = ("shared_buffers=1GB", "max_parallel_workers_per_gather=0", "max_parallel_maintenance_workers=0")
HEAD = [
    "store",
    "search",
    "written, s",
    "built, s",
    "one, ms",
    "/ torch",
    "half, ms",
    "1 %, ms",
    "of 64, ms",
    "/ torch",
]
HEAD += ["recall@10", "memory, MiB", "disk, MiB"]


def memory(processes: list[int]) -> float:
    """MiB of these processes, what they share divided among them."""
    found = 0
    for process in processes:
        with suppress(OSError):  # a worker of a server may just have ended
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            found += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return found / 1024


def disk(folder: Path) -> float:
    """MiB of the files in a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 2**20


def measure(
    store: str, path: str, folder: Path, processes, vectors: torch.Tensor, model, kinds
) -> list[list[str]]:
    """Rows of the table for one store, one for each kind of search."""
    size, rows, before = len(vectors), torch.randperm(len(vectors))[:BATCH].tolist(), memory(processes())
    start = time.perf_counter()
    index = Index.create(towers_of(model), path)
    index.add(Item(str(row), vector=vector, metadata={"row": row}) for row, vector in enumerate(vectors))
    written, told = time.perf_counter() - start, []
    queries = [Query(like=str(row)) for row in rows]
    asked = vectors[rows]
    truth = (asked @ vectors.T).topk(K + 1).indices.tolist()
    right = [{str(other) for other in own if other != row} for row, own in zip(rows, truth)]
    half, few = ({"row": {"<": size // part}} for part in (2, 100))
    print(f"{store}: {size:,} written in {written:.0f} s", flush=True)
    for kind in kinds:
        start = time.perf_counter()
        index.approximate(kind)
        built = time.perf_counter() - start
        found = index.search_many(queries, K)
        recall = sum(len({hit.id for hit in hits} & own) for hits, own in zip(found, right)) / (K * BATCH)
        plain, one, in_half, in_few = search.median_ms(
            lambda: (vectors @ asked[0]).topk(K),
            lambda: index.search(queries[0], K),
            lambda: index.search(queries[0], K, where=half),
            lambda: index.search(queries[0], K, where=few),
            repeats=REPEATS,
        )
        plain_all, all_ = search.median_ms(
            lambda: (asked @ vectors.T).topk(K), lambda: index.search_many(queries, K), repeats=2
        )
        times = [
            f"{written:.0f}",
            f"{built:.0f}",
            f"{one:.1f}",
            f"{one / plain:.2f}",
            f"{in_half:.1f}",
            f"{in_few:.1f}",
        ]
        times += [f"{all_ / BATCH:.2f}", f"{all_ / plain_all:.2f}", f"{recall:.3f}"]
        told.append([store, kind, *times, f"{memory(processes()) - before:,.0f}", f"{disk(folder):,.0f}"])
        print(told[-1], flush=True)
    return told


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000])
    parser.add_argument("--width", type=int, default=512, help="numbers of a vector")
    parser.add_argument("--stores", nargs="+", default=["folder", "Milvus Lite", "PostgreSQL", "Milvus"])
    parser.add_argument("--out", default="stores-cpu", help="name of the file below results/, after the date")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds for an answer of Milvus, on a busy machine"
    )
    parser.add_argument("--kinds", nargs="+", default=["exact", "hnsw"])
    args = parser.parse_args()
    milvus_rows.TIMEOUT = args.timeout
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = create_model("vse_fc", tokenizer=Vocabulary.build(["a dog"], 1), dim=args.width).eval()
    text, path = (
        f"# The same index at several places: ten best of many, d = {args.width}\n\n{environment()}\n",
        None,
    )
    for size in args.sizes:
        rows, told, vectors = [], "", search.clustered(size, width=args.width)
        for store in args.stores:
            if store == "Milvus Lite" and size > MOST_OF_LITE:
                continue
            with tempfile.TemporaryDirectory(prefix="selhn") as name, ExitStack() as opened:
                folder = Path(name)
                try:
                    place, processes = started(store, folder, opened)
                except pytest.skip.Exception as missing:
                    print(f"{store}: {missing}")
                    continue
                rows += measure(store, place, folder, processes, vectors, model, args.kinds)
            load = (
                f"At the end {os.getloadavg()[2]:.0f} processes wanted to run (load average of 15 minutes)."
            )
            told = f"\n## {size:,} images\n\n{load}\n\n{table(HEAD, rows)}\n"
            path = save(args.out, text + told)
        text += told
    print(f"\n{text}\nwritten to {path}")


def started(store: str, folder: Path, opened: ExitStack):
    """Where the index is to be, and what gives the processes that hold it."""
    if store in ("folder", "Milvus Lite"):
        return str(
            folder / ("vectors.db" if store == "Milvus Lite" else "vectors.index")
        ), lambda: servers_of(None)
    if store == "Milvus":
        server = Milvus(folder)
    else:
        server = Postgres(folder, *(part for setting in POSTGRES for part in ("-c", setting)))
    opened.callback(server.stop)
    return server.uri() if store == "PostgreSQL" else server.uri, lambda: servers_of(server.process.pid)


if __name__ == "__main__":
    main()
