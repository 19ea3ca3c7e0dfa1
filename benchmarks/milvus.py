"""Ten best images among many: an index in Milvus Lite beside the exact one in memory, in one run.

    python benchmarks/milvus.py                   10,000 x 512
    python benchmarks/milvus.py --uri http://host:19530 --sizes 1000000

The vectors are those of `search.py`. Answers of both are compared.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import search
import torch
from pymilvus import MilvusClient
from report import environment, save, table
from torch.nn.functional import normalize

from selhn.models import create_model
from selhn.search import Index, Item, Query
from selhn.text import Vocabulary

WIDTH, K, BATCH = 512, 10, 64


def measure(size: int, uri: str) -> list[str]:
    """A row of the table."""
    torch.manual_seed(0)
    model = create_model("vse_fc", tokenizer=Vocabulary.build(["a dog"], 1), dim=WIDTH).eval()
    vectors = normalize(search.clustered(size)[:, :WIDTH], dim=1)
    items = [Item(str(row), vector=vector, metadata={"row": row}) for row, vector in enumerate(vectors)]
    exact, remote, seconds = Index.create(model), Index.create(model, uri), []
    for index in (exact, remote):
        start = time.perf_counter()
        index.add(items)
        seconds.append(time.perf_counter() - start)
    queries = [Query(like=str(row)) for row in torch.randperm(size)[:BATCH].tolist()]
    found = [[[hit.id for hit in hits] for hits in index.search_many(queries, K)] for index in (exact, remote)]
    same = sum(ours == theirs for ours, theirs in zip(*found))
    one = search.median_ms(*(lambda index=index: index.search(queries[0], K) for index in (exact, remote)))
    where = {"row": {"<": size // 2}}
    half = search.median_ms(
        *(lambda index=index: index.search(queries[0], K, where=where) for index in (exact, remote))
    )
    many = search.median_ms(*(lambda index=index: index.search_many(queries, K) for index in (exact, remote)))
    remove(uri)
    times = [f"{value:.1f}" for pair in (one, half, [each / BATCH for each in many]) for value in pair]
    return [f"{size:,}", f"{same} of {BATCH}", *times, *(f"{size / each:,.0f}" for each in seconds)]


def remove(uri: str) -> None:
    """Remove the collections of the benchmark: a server keeps them otherwise, and the next size needs the name."""
    address, _, name = uri.partition("#")
    client = MilvusClient(address, token=os.environ.get("MILVUS_TOKEN", ""))
    for part in ("about", "texts", "images"):
        client.drop_collection(f"{name}_{part}")


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000])
    parser.add_argument("--uri", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        uri = args.uri or str(Path(folder) / "vectors.db")
        rows = [measure(size, f"{uri}#benchmark") for size in args.sizes]
    head = ["images", "same answers", "exact, ms", "Milvus, ms", "half by a filter, exact, ms", "Milvus, ms"]
    head += ["of 64, exact, ms", "Milvus, ms", "exact, added/s", "Milvus, added/s"]
    kind = "Milvus" if args.uri else "Milvus Lite"
    text = f"# {kind} beside the exact index: ten best of many, d = {WIDTH}\n\n{environment()}\n\n{table(head, rows)}"
    print(f"\n{text}\n\nwritten to {save('milvus-cpu', text)}")


if __name__ == "__main__":
    main()
