"""One query against many images: `Index.search` beside numpy's product and argsort, in one run.

    python benchmarks/search.py                   10,000 and 100,000 images on the CPU
    python benchmarks/search.py --device cuda     up to 1,000,000

Random unit embeddings with d = 1024. Our time includes reading and encoding the sentence; numpy gets the embedding.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from report import environment, save, table
from torch.nn.functional import normalize

from selhn.models import create_model
from selhn.retrieve import Index
from selhn.text import Vocabulary

WIDTH = 1024
SENTENCE = "a dog jumps over a fence"


def median_ms(compute, repeats: int = 20) -> float:
    """Milliseconds, the median of some runs after two that are not counted."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        compute()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])


def main() -> None:
    """Every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+", default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    torch.manual_seed(0)
    model = create_model("vse_fc", tokenizer=Vocabulary.build([SENTENCE], 1), dim=WIDTH).to(arguments.device)
    rows = []
    for size in arguments.sizes or ([100_000, 1_000_000] if on_gpu else [10_000, 100_000]):
        images = normalize(torch.randn(size, WIDTH), dim=1)
        query = normalize(torch.randn(WIDTH), dim=0).numpy()
        array = images.numpy()
        reference = median_ms(lambda array=array, query=query: np.argsort(array @ query)[::-1][:10])
        nobody = torch.zeros(0, dtype=torch.int64)
        names = [str(row) for row in range(size)]
        index = Index(model, images.to(arguments.device), images[:0], names, [], nobody)
        ours = median_ms(lambda index=index: index.search(SENTENCE, k=10))
        rows.append([f"{size:,}", f"{reference:.2f}", f"{ours:.2f}", f"{reference / ours:.1f}x"])
        print(" ".join(rows[-1]), flush=True)
    header = ["images", "numpy, ms", "Index.search, ms", "speed"]
    text = f"# Search: ten best images for a sentence, d = {WIDTH}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'search-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
