"""Ten best images among many: exact search and FAISS candidates beside plain torch, in one run.

    python benchmarks/search.py                             100,000 x 1024: exact, and HNSW with FAISS
    python benchmarks/search.py --sizes 1000000 --precision float16 --kinds exact ivf ivf_int8
    python benchmarks/search.py --device cuda --kinds exact

The vectors are clustered (a centre for every hundred of them, and noise), for on independent ones in so many dimensions
no index finds neighbours; those of trained models are harder than these. Plain torch is `(images @ query).topk(10)` on
a float32 matrix in memory, measured in turn with ours, and it also says which ten are right. Ours reads the vectors
from the index on disk, mapped, and answers with ids and metadata; the query is a vector there too (`like=`).
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from report import environment, save, table
from torch.nn.functional import normalize

from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item, Query
from selhn.text import Vocabulary

WIDTH, K, BATCH = 1024, 10, 64


def median_ms(*computed: Callable[[], object], repeats: int = 10) -> list[float]:
    """Milliseconds of each, in turn: the median of some rounds after one that is not counted."""
    times: list[list[float]] = [[] for _ in computed]
    for _ in range(repeats + 1):
        for own, compute in zip(times, computed):
            start = time.perf_counter()
            compute()
            own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own[1:]) for own in times]


def clustered(size: int, seed: int = 0, width: int = WIDTH) -> torch.Tensor:
    """Unit vectors around a centre for every hundred."""
    generator = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(max(1, size // 100), width, generator=generator), dim=1)
    vectors = torch.empty(size, width)
    for block in torch.arange(size).split(10_000):
        chosen = torch.randint(len(centres), (len(block),), generator=generator)
        noise = torch.randn(len(block), width, generator=generator) / width**0.5
        vectors[block] = normalize(centres[chosen] + 0.7 * noise, dim=1)
    return vectors


def filled(model, vectors: torch.Tensor, folder: Path, precision: str) -> tuple[Index, float]:
    """An index of vectors, and the seconds it took to write."""
    start = time.perf_counter()
    index = Index.create(towers_of(model), folder, precision=precision)
    index.add(Item(str(row), vector=vector, metadata={"row": row}) for row, vector in enumerate(vectors))
    return index, time.perf_counter() - start


def measure(size: int, kinds: list[str], precision: str, device: str, folder: Path) -> list[list[str]]:
    """Rows of the table for one size."""
    torch.manual_seed(0)
    model = create_model("vse_fc", tokenizer=Vocabulary.build(["a dog"], 1), dim=WIDTH).eval()
    vectors = clustered(size)
    index, seconds = filled(model, vectors, folder, precision)
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    # Positions are rows until something is deleted; a query is an item, which torch finds first.
    rows = torch.randperm(size)[:BATCH]
    matrix, queries = vectors.to(device), vectors[rows].to(device)
    index.to(device)
    truth = (queries @ matrix.T).topk(K + 1).indices.tolist()
    names = [str(row) for row in rows.tolist()]
    result = []
    for kind in kinds:
        start = time.perf_counter()
        index.approximate(kind)
        built = time.perf_counter() - start
        found = index.search_many([Query(like=name) for name in names], k=K)
        hits = [len({int(hit.id) for hit in own} & set(right)) for own, right in zip(found, truth)]
        recall = sum(hits) / (K * BATCH)
        plain, ours = median_ms(
            lambda: (matrix @ queries[0]).topk(K).indices.tolist(), lambda: index.search(like=names[0], k=K)
        )
        plain_batch, our_batch = median_ms(
            lambda: (queries @ matrix.T).topk(K).indices.tolist(),
            lambda: index.search_many([Query(like=name) for name in names], k=K),
            repeats=3,
        )
        file = sum(path.stat().st_size for path in (folder / "approximate").glob("*")) / 2**20
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        result.append(
            [f"{size:,}", kind, precision, f"{recall:.3f}", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}",
             f"{plain_batch / BATCH:.2f}", f"{our_batch / BATCH:.2f}", f"{our_batch / plain_batch:.2f}",
             f"{seconds:.0f} + {built:.0f}", f"{on_disk:.0f} + {file:.0f}", f"{memory:.1f}"]
        )  # fmt: skip
        print(" | ".join(result[-1]), flush=True)
    return result


def main() -> None:
    """Every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000])
    kinds = ["exact", "hnsw"] if find_spec("faiss") else ["exact"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=["exact", "hnsw", "ivf", "ivf_int8"])
    parser.add_argument("--precision", nargs="+", default=["float32"], choices=["float32", "float16", "int8"])
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        for precision in arguments.precision:
            with tempfile.TemporaryDirectory() as folder:
                rows += measure(size, arguments.kinds, precision, arguments.device, Path(folder) / "index")
    header = ["images", "candidates", "vectors", f"recall@{K}", "torch, ms", "index, ms", "ratio",
              f"torch, ms of {BATCH}", f"index, ms of {BATCH}", "ratio", "written + built, s", "MiB + FAISS",
              "peak GiB"]  # fmt: skip
    note = (
        "ratio: time of the index over that of plain torch in the same rounds; below 1 is faster. Peak memory is that\n"
        "of the whole process so far, with torch's own matrix."
    )
    text = f"# Search: ten best of many, d = {WIDTH}\n\n{environment()}\n\n{table(header, rows)}\n\n{note}"
    print(f"\n{text}\n\nwritten to {save(f'search-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
