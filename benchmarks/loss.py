"""Time and peak memory of a loss, forward and backward, against the batch size.

    python benchmarks/loss.py                          CPU, up to B = 16,384
    python benchmarks/loss.py --device cuda            one GPU, up to B = 65,536

"materialised" rows are what a user writes by hand: the B x B scores and plain autograd. "collapsed" embeddings make
SelHN average every anchor, its dearest case; "trained" ones make it mine nearly all. Memory is what is added to the
embeddings and their gradients. On the CPU every row is a process of its own, because only the peak of a whole process
can be read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from report import environment, save, table
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selhn.losses import TripletHN, TripletSelHN

MIB = 2**20


def materialised_hardest(images: Tensor, texts: Tensor) -> Tensor:
    """T-HN as it is usually written: hinge on the whole matrix, zero on the diagonal, then the maxima."""
    scores = images @ texts.T
    positive = scores.diagonal()
    diagonal = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    of_images = (scores - positive[:, None] + 0.2).clamp(min=0).masked_fill(diagonal, 0)
    of_texts = (scores - positive[None, :] + 0.2).clamp(min=0).masked_fill(diagonal, 0)
    return (of_images.max(1).values.sum() + of_texts.max(0).values.sum()) / (2 * len(scores))


def materialised_clip(images: Tensor, texts: Tensor) -> Tensor:
    """CLIP's symmetric cross-entropy on the whole matrix."""
    logits = images @ texts.T / 0.07
    target = torch.arange(len(logits), device=logits.device)
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


METHODS = {
    "T-HN, materialised": (materialised_hardest, "trained"),
    "CLIP, materialised": (materialised_clip, "trained"),
    "SelHN, dense": (lambda v, t: TripletSelHN()(v @ t.T), "trained"),
    "T-HN, from_embeddings": (TripletHN().from_embeddings, "trained"),
    "SelHN, from_embeddings": (TripletSelHN().from_embeddings, "trained"),
    "SelHN collapsed, dense": (lambda v, t: TripletSelHN()(v @ t.T), "collapsed"),
    "SelHN collapsed, from_embeddings": (TripletSelHN().from_embeddings, "collapsed"),
}
REFERENCE = "T-HN, materialised"


def embeddings(kind: str, batch: int, width: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Unit rows: texts near their images, or everything near one point."""
    generator = torch.Generator(device).manual_seed(0)
    images, texts = torch.randn(2, batch, width, generator=generator, device=device)
    if kind == "collapsed":
        images, texts = 1 + 0.02 * images, 1 + 0.02 * texts
    else:
        texts = images + 0.7 * texts
    return tuple(normalize(emb, dim=1).to(dtype).requires_grad_() for emb in (images, texts))


def measure(method: str, batch: int, width: int, device: str, dtype: str, repeats: int) -> dict[str, float]:
    """Best time of a forward and backward pass, and the memory it added at its peak."""
    compute, kind = METHODS[method]
    images, texts = embeddings(kind, batch, width, device, getattr(torch, dtype))
    images.grad, texts.grad = torch.zeros_like(images), torch.zeros_like(texts)
    on_gpu = device == "cuda"
    times, before = [], 0
    for _ in range(repeats + on_gpu):  # a GPU's first call sets up libraries
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        else:
            before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        start = time.perf_counter()
        compute(images, texts).backward()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": min(times[on_gpu:]), "mib": (peak - before) / MIB}


def in_own_process(*arguments: object) -> dict[str, float]:
    """`measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"seconds": float("nan"), "mib": float("nan")}
    return json.loads(done.stdout.splitlines()[-1])


def attempt(*arguments: object) -> dict[str, float]:
    """`measure`, or NaN where the matrix does not fit."""
    try:
        return measure(*arguments)
    except torch.cuda.OutOfMemoryError:
        return {"seconds": float("nan"), "mib": float("nan")}
    finally:
        torch.cuda.empty_cache()


def main() -> None:
    """All methods at all sizes; the ratio is to the first row of the same size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--width", type=int, default=None, help="d; 256 on the CPU, 1024 on a GPU")
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    on_gpu = arguments.device == "cuda"
    width = arguments.width or (1024 if on_gpu else 256)
    rows = []
    for batch in arguments.batches or ([4096, 16384, 32768, 65536] if on_gpu else [1024, 4096, 16384]):
        results = {}
        for method in METHODS:
            run = attempt if on_gpu else in_own_process
            results[method] = run(method, batch, width, arguments.device, arguments.dtype, arguments.repeats)
            got, reference = results[method], results[REFERENCE]
            fits, compares = got["seconds"] == got["seconds"], reference["seconds"] == reference["seconds"]
            ratios = [f"{got[key] / reference[key]:.3f}" if fits and compares else "-" for key in ("seconds", "mib")]
            milliseconds = f"{got['seconds'] * 1e3:,.1f}" if fits else "does not fit"
            rows.append(
                [method, f"{batch:,}", milliseconds, ratios[0], f"{got['mib']:,.0f}" if fits else "-", ratios[1]]
            )
            print(" ".join(rows[-1]), flush=True)
    header = ["loss, forward + backward", "B", "ms", "ratio", "peak MiB", "ratio"]
    text = f"# Loss against batch size, d = {width}, {arguments.dtype}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'loss-{arguments.device}-{arguments.dtype}', text, arguments.out)}")


if __name__ == "__main__":
    main()
