"""Time and peak memory of a loss, forward and backward, against the batch size.

    python benchmarks/loss.py                                               CPU, up to B = 16,384
    python benchmarks/loss.py --device cuda --dtype bfloat16                one GPU, B = 65,536 and 1,048,576

"materialised" rows are what a user writes by hand: the B x B scores and plain autograd. "collapsed" embeddings make
SelHN average every anchor, its dearest case; "trained" ones, where one pair in 25 has a twin, make it mine all
others. Memory is what is added to the embeddings and their gradients. "of peak" is the time that the products of the
loss would take at the speed of one large product, measured in the same run, over the time taken: one product of the
embeddings, and two for the gradients of pairs that are not mined. On the CPU every row is a process of its own,
because only the peak of a whole process can be read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from report import environment, matmul_rate, save, table
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selhn.kernels import tiled_statistics
from selhn.losses import InfoNCE, SigLIP, TripletHN, TripletSelHN

MIB = 2**20
LARGE = 2**18
"""From this batch size on only a few losses `from_embeddings` are measured, once."""


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


def in_torch(images: Tensor, texts: Tensor) -> Tensor:
    """SelHN without the Triton kernels."""
    return TripletSelHN().from_embeddings(images, texts, tile=8192 if images.is_cuda else 1024)


# What is computed, from which embeddings, and whether anchors mine: all, as SelHN decides, or none.
METHODS = {
    "T-HN, materialised": (materialised_hardest, "trained", "all"),
    "CLIP, materialised": (materialised_clip, "trained", "none"),
    "SelHN, dense": (lambda v, t: TripletSelHN()(v @ t.T), "trained", "selhn"),
    "SelHN, torch tiles": (in_torch, "trained", "selhn"),
    "SelHN, from_embeddings": (TripletSelHN().from_embeddings, "trained", "selhn"),
    "T-HN, from_embeddings": (TripletHN().from_embeddings, "trained", "all"),
    "SelHN collapsed, dense": (lambda v, t: TripletSelHN()(v @ t.T), "collapsed", "selhn"),
    "SelHN collapsed, torch tiles": (in_torch, "collapsed", "selhn"),
    "SelHN collapsed, from_embeddings": (TripletSelHN().from_embeddings, "collapsed", "selhn"),
    "InfoNCE, from_embeddings": (InfoNCE().from_embeddings, "trained", "none"),
    "SigLIP, from_embeddings": (SigLIP().from_embeddings, "trained", "none"),
}
REFERENCE = "T-HN, materialised"
FOR_LARGE = ("SelHN, from_embeddings", "SelHN collapsed, from_embeddings", "InfoNCE, from_embeddings")
MISSING = {"seconds": float("nan"), "mib": float("nan"), "mined": float("nan")}


def embeddings(kind: str, batch: int, width: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Unit rows: texts near their images, one pair in 25 with a twin; or everything near one point."""
    generator = torch.Generator(device).manual_seed(0)
    images, texts = torch.randn(2, batch, width, generator=generator, device=device)
    if kind == "collapsed":
        images, texts = images.mul_(0.02).add_(1), texts.mul_(0.02).add_(1)
    else:
        texts.mul_(0.7).add_(images)
        for emb in (images, texts):
            emb[1::50] = emb[0::50][: len(emb[1::50])]
    return tuple(normalize(emb, dim=1).to(dtype).requires_grad_() for emb in (images, texts))


def share_mined(images: Tensor, texts: Tensor, mines: str) -> float:
    """The share of anchors that mine their hardest negative."""
    if mines != "selhn":
        return float(mines == "all")
    loss_fn = TripletSelHN()
    with torch.no_grad():
        anchors = tiled_statistics(images, texts, None, ("hardest",), loss_fn.terms)
    return ((anchors.hardest - anchors.positive).abs() > loss_fn.epsilon).double().mean().item()


def measure(method: str, batch: int, width: int, device: str, dtype: str, repeats: int) -> dict[str, float]:
    """Best time of a forward and backward pass, the memory it added at its peak, and the share of mined anchors."""
    compute, kind, mines = METHODS[method]
    on_gpu = device == "cuda"
    if on_gpu:  # the first call compiles kernels and sets up libraries
        compute(*embeddings(kind, 1024, width, device, getattr(torch, dtype))).backward()
    images, texts = embeddings(kind, batch, width, device, getattr(torch, dtype))
    images.grad, texts.grad = torch.zeros_like(images), torch.zeros_like(texts)
    times, before = [], 0
    for _ in range(repeats):
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
    return {"seconds": min(times), "mib": (peak - before) / MIB, "mined": share_mined(images, texts, mines)}


def in_own_process(*arguments: object) -> dict[str, float]:
    """`measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    return MISSING if done.returncode else json.loads(done.stdout.splitlines()[-1])


def attempt(*arguments: object) -> dict[str, float]:
    """`measure`, or NaN where the matrix does not fit."""
    try:
        return measure(*arguments)
    except torch.cuda.OutOfMemoryError:
        return MISSING
    finally:
        torch.cuda.empty_cache()


def row(method: str, batch: int, width: int, got: dict[str, float], reference: dict[str, float], rate: float) -> list:
    """A line of the table; the ratios are to the reference at the same size."""
    if got["seconds"] != got["seconds"]:
        return [method, f"{batch:,}", "does not fit", *["-"] * 5]
    compares = reference["seconds"] == reference["seconds"]
    ratios = [f"{got[key] / reference[key]:.3f}" if compares and reference[key] else "-" for key in ("seconds", "mib")]
    products = 1 + 2 * (1 - got["mined"] ** 2)
    of_peak = products * 2 * batch**2 * width / rate / got["seconds"]
    return [method, f"{batch:,}", f"{got['seconds'] * 1e3:,.1f}", ratios[0], f"{got['mib']:,.0f}", ratios[1],
            f"{got['mined']:.1%}", f"{of_peak:.0%}"]  # fmt: skip


def main() -> None:
    """All methods at all sizes."""
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
    width, run = arguments.width or (1024 if on_gpu else 256), attempt if on_gpu else in_own_process
    rate, rows = matmul_rate(arguments.device, getattr(torch, arguments.dtype)), []
    for batch in arguments.batches or ([65536, 1048576] if on_gpu else [1024, 4096, 16384]):
        reference = MISSING
        for method in METHODS:
            if batch >= LARGE and method not in FOR_LARGE:
                continue
            repeats = 1 if batch >= LARGE else arguments.repeats
            got = run(method, batch, width, arguments.device, arguments.dtype, repeats)
            reference = got if method == REFERENCE else reference
            rows.append(row(method, batch, width, got, reference, rate))
            print(" ".join(rows[-1]), flush=True)
    header = ["loss, forward + backward", "B", "ms", "ratio", "peak MiB", "ratio", "mined", "of peak"]
    title = f"# Loss against batch size, d = {width}, {arguments.dtype}"
    peak = f"One large product: {rate / 1e12:,.1f} TFLOP/s, measured in the same run."
    text = f"{title}\n\n{environment()}\n\n{peak}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'loss-{arguments.device}-{arguments.dtype}', text, arguments.out)}")


if __name__ == "__main__":
    main()
