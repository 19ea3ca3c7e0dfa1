"""Time and peak memory of a loss, forward and backward, against the batch size.

    python benchmarks/loss.py                                               CPU, up to B = 16,384
    python benchmarks/loss.py --device cuda --dtype bfloat16                one GPU, B = 65,536 and 1,048,576
    python benchmarks/loss.py --quick                                       does it run: B = 1,024, once

Every loss of the table `from_embeddings`, in two groups by what it takes of an anchor's negatives. "materialised" rows
are what a user writes by hand, the B x B scores and plain autograd, and the reference of their group; on a GPU by
torch.compile too, and CLIP's loss as programs compute it that save memory (`clip_in_blocks.py`). "collapsed"
embeddings make SelHN average every anchor, its dearest case; "trained" ones, where one pair in 25 has a twin, make it
mine all others. Memory is what is added to the embeddings and their gradients. "of peak" is the time that the products
of the loss would take at the speed of one large product, measured in the same run, over the time taken: one product of
the embeddings, and two for the gradients of pairs that are not mined. On the CPU every row is a process of its own,
because only the peak of a whole process can be read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from report import environment, matmul_rate, save, table
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selhn.base.types import Products
from selhn.losses import LOSSES, AbstractLoss, TripletSelHN, create_loss, row_statistics
from selhn.losses.anchors import anchor_statistics

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


def compiled(plain: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The same by torch.compile."""
    return lambda images, texts: torch.compile(plain)(images, texts)


def clip_one_recomputation(images: Tensor, texts: Tensor) -> Tensor:
    """CLIP's loss in blocks, both gradients from one recomputation of each."""
    from clip_in_blocks import clip_in_blocks  # Triton, which only a GPU has

    return clip_in_blocks(images, texts)


def in_torch(images: Tensor, texts: Tensor) -> Tensor:
    """SelHN without the Triton kernels."""
    kernels, row_statistics.can_fuse = row_statistics.can_fuse, lambda emb, dtype: False
    try:
        loss = TripletSelHN().from_embeddings(images, texts)
        loss.backward()  # which chooses again
        return loss.detach().requires_grad_()
    finally:
        row_statistics.can_fuse = kernels


def dense(images: Tensor, texts: Tensor) -> Tensor:
    """SelHN on the matrix."""
    return TripletSelHN()(images @ texts.T)


class Method(NamedTuple):
    """What is computed, from which embeddings, and whether anchors mine: all, as SelHN decides, or none."""

    compute: Callable[[Tensor, Tensor], Tensor]
    embeddings: str = "trained"
    mines: str = "selhn"


def on_the_device(loss_fn: AbstractLoss) -> Callable[[Tensor, Tensor], Tensor]:
    """`from_embeddings`, with what the loss learns on the device of the embeddings."""
    return lambda images, texts: loss_fn.to(images.device).from_embeddings(images, texts)


LEARN_NOTHING = {"siglip": {"learn": False}, "siglip_multi": {"learn": False}}
"""What is measured is the loss, not its learnt scale."""


def of_table(group: str) -> dict[str, Method]:
    """The losses of `LOSSES` that take hinges and maxima of their negatives, or soft sums of them."""
    methods = {}
    for name, entry in LOSSES.items():
        loss_fn = create_loss(name, **LEARN_NOTHING.get(name, {}))
        soft = bool({"log_sum_exp", "softplus_sum"}.intersection(loss_fn.needs))
        mines = "selhn" if isinstance(loss_fn, TripletSelHN) else "all" if loss_fn.mines else "none"
        if soft == (group == "soft sums"):
            methods[f"{entry.loss.__name__}, from_embeddings"] = Method(on_the_device(loss_fn), mines=mines)
    return methods


# The first of a group is its reference.
GROUPS: dict[str, dict[str, Method]] = {
    "hinges and maxima": {
        "T-HN, materialised": Method(materialised_hardest, mines="all"),
        "T-HN, torch.compile": Method(compiled(materialised_hardest), mines="all"),
        "TripletSelHN, dense": Method(dense),
        "TripletSelHN, blocks in torch": Method(in_torch),
        "TripletSelHN collapsed, dense": Method(dense, "collapsed"),
        "TripletSelHN collapsed, blocks in torch": Method(in_torch, "collapsed"),
        "TripletSelHN collapsed, from_embeddings": Method(TripletSelHN().from_embeddings, "collapsed"),
        **of_table("hinges and maxima"),
    },
    "soft sums": {
        "CLIP, materialised": Method(materialised_clip, mines="none"),
        "CLIP, torch.compile": Method(compiled(materialised_clip), mines="none"),
        "CLIP, blocks in Triton": Method(clip_one_recomputation, mines="none"),
        **of_table("soft sums"),
    },
}
ON_A_GPU = ("T-HN, torch.compile", "CLIP, torch.compile", "CLIP, blocks in Triton")
FOR_LARGE = (
    "TripletSelHN, from_embeddings",
    "TripletSelHN collapsed, from_embeddings",
    "InfoNCE, from_embeddings",
)
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
        anchors = anchor_statistics(Products(images, texts), None, ("hardest",))
    return ((anchors["hardest"] - anchors.positive).abs() > loss_fn.epsilon).double().mean().item()


def measure(
    group: str, method: str, batch: int, width: int, device: str, dtype: str, repeats: int
) -> dict[str, float]:
    """Best time of a forward and backward pass, the memory it added at its peak, and the share of mined anchors."""
    compute, kind, mines = GROUPS[group][method]
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
    peak = (
        torch.cuda.max_memory_allocated()
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {"seconds": min(times), "mib": (peak - before) / MIB, "mined": share_mined(images, texts, mines)}


def in_own_process(*arguments: object) -> dict[str, float]:
    """`measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
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


def row(
    method: str, batch: int, width: int, got: dict[str, float], reference: dict[str, float], rate: float
) -> list:
    """A line of the table; the ratios are to the reference at the same size."""
    if got["seconds"] != got["seconds"]:
        return [method, f"{batch:,}", "does not fit", *["-"] * 5]
    compares = reference["seconds"] == reference["seconds"]
    ratios = [
        f"{got[key] / reference[key]:.3f}" if compares and reference[key] else "-"
        for key in ("seconds", "mib")
    ]
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
    parser.add_argument("--quick", action="store_true", help="a small batch, once, and nothing is written")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    on_gpu = arguments.device == "cuda"
    width, run = arguments.width or (1024 if on_gpu else 256), attempt if on_gpu else in_own_process
    sizes = [1024] if arguments.quick else [65536, 1048576] if on_gpu else [1024, 4096, 16384]
    rate, tables = matmul_rate(arguments.device, getattr(torch, arguments.dtype)), []
    for group, methods in GROUPS.items():
        rows = []
        for batch in arguments.batches or sizes:
            reference = MISSING
            for method in methods:
                if method not in FOR_LARGE if batch >= LARGE else method in ON_A_GPU and not on_gpu:
                    continue
                repeats = 1 if batch >= LARGE or arguments.quick else arguments.repeats
                got = run(group, method, batch, width, arguments.device, arguments.dtype, repeats)
                reference = got if method == next(iter(methods)) else reference
                rows.append(row(method, batch, width, got, reference, rate))
                print(" ".join(rows[-1]), flush=True)
        header = [f"{group}, forward + backward", "B", "ms", "ratio", "peak MiB", "ratio", "mined", "of peak"]
        tables.append(table(header, rows))
    title = f"# Loss against batch size, d = {width}, {arguments.dtype}"
    peak = f"One large product: {rate / 1e12:,.1f} TFLOP/s, measured in the same run."
    text = "\n\n".join([title, environment(), peak, *tables])
    print(f"\n{text}")
    if not arguments.quick:
        print(f"\nwritten to {save(f'loss-{arguments.device}-{arguments.dtype}', text, arguments.out)}")


if __name__ == "__main__":
    main()
