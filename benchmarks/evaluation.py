"""Time and peak memory of evaluation beside the usual loop over argsort, in one run.

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --device cuda

A split of the size of Flickr30K's test set (1,000 x 5,000) and one of COCO 5K (5,000 x 25,000), random unit embeddings
with d = 1024. The usual loop of public programs: one argsort for every query, then a search for the rank. On the CPU
every row is a process of its own, because only the peak of a whole process can be read; memory is what is added to the
embeddings or, where a method starts from the scores, to the scores. On a GPU the loop gets its scores from the device,
and a row is the best of three.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from report import environment, save, table
from torch.nn.functional import normalize

import selhn
from selhn.eval import recall_from_embeddings

SIZES = {"Flickr30K": 1000, "COCO 5K": 5000}


def argsort_loop(scores: np.ndarray) -> float:
    """RSUM by one argsort a query."""
    found_i2t = np.array([
        min(np.where(np.isin(np.argsort(row)[::-1], np.arange(5 * i, 5 * i + 5)))[0]) for i, row in enumerate(scores)
    ])  # fmt: skip
    found_t2i = np.array([np.where(np.argsort(row)[::-1] == j // 5)[0][0] for j, row in enumerate(scores.T)])
    return sum(100 * (found < k).mean() for found in (found_i2t, found_t2i) for k in (1, 5, 10))


METHODS = {
    "argsort loop, from scores": lambda v, t, s, own: argsort_loop(s.cpu().numpy()),
    "selhn.recall, from scores": lambda v, t, s, own: selhn.recall(s, own).rsum,
    "recall_from_embeddings": lambda v, t, s, own: recall_from_embeddings(v, t, own).rsum,
}


def measure(method: str, num_images: int, device: str) -> dict[str, float]:
    """Seconds, added peak memory, and RSUM to see that all agree."""
    torch.manual_seed(0)
    images = torch.randn(num_images, 1024)
    texts = normalize(images.repeat_interleave(5, 0) + 6 * torch.randn(5 * num_images, 1024), dim=1).to(
        device
    )
    images = normalize(images, dim=1).to(device)
    own = torch.arange(5 * num_images) // 5
    scores = torch.empty(0) if method == "recall_from_embeddings" else images @ texts.T
    if device == "cuda":
        return best_on_gpu(lambda: METHODS[method](images, texts, scores, own), 1 if "loop" in method else 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    rsum = METHODS[method](images, texts, scores, own)
    seconds = time.perf_counter() - start
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "mib": added / 1024, "rsum": rsum}


def best_on_gpu(compute: Callable[[], float], repeats: int) -> dict[str, float]:
    """The fastest of some runs, after one that is not counted if there are several."""
    times = []
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(repeats + (repeats > 1)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        rsum = compute()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "mib": (torch.cuda.max_memory_allocated() - before) / 2**20, "rsum": rsum}


def main() -> None:
    """All methods at both sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    rows = []
    for name, num_images in SIZES.items():
        reference = 0.0
        for method in METHODS:
            command = [sys.executable, __file__, "--one", json.dumps([method, num_images, arguments.device])]
            got = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
            reference = reference or got["seconds"]
            rows.append([f"{name}: {method}", f"{got['seconds'] * 1e3:,.1f}", f"{reference / got['seconds']:.1f}x",
                         f"{got['mib']:,.0f}", f"{got['rsum']:.2f}"])  # fmt: skip
            print(" ".join(rows[-1]), flush=True)
    text = f"# Evaluation\n\n{environment()}\n\n{table(['method', 'ms', 'speed', 'peak MiB', 'RSUM'], rows)}"
    print(f"\n{text}\n\nwritten to {save(f'evaluation-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
