"""CPU time of losses on one core, forward and backward: against six lines of torch, and against another checkout.

    python benchmarks/loss_cpu.py                           from scores, beside the loss in six lines of torch
    python benchmarks/loss_cpu.py --against ../selhn-0.2    also from embeddings, beside that checkout

Every row is measured in turns, some calls here and some there, and the smallest time of each counts: so that what else
runs on the machine is the same for both. The other checkout is a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, normalize

SCORES, EMBEDDINGS, WIDTH = (1024, 128, 32), (128, 512, 2048, 8192), 256
MARGIN, EPSILON = 0.2, 0.01


def six_line_hn(scores: Tensor) -> Tensor:
    """T-HN."""
    positive, diagonal = scores.diagonal(), torch.eye(len(scores), dtype=torch.bool)
    negatives = scores.masked_fill(diagonal, -1)
    of_images = (negatives.amax(1) - positive + MARGIN).clamp(min=0)
    of_texts = (negatives.amax(0) - positive + MARGIN).clamp(min=0)
    return (of_images.sum() + of_texts.sum()) / (2 * len(scores))


def six_line_triplet(scores: Tensor) -> Tensor:
    """The sum of all hinges."""
    positive, diagonal = scores.diagonal(), torch.eye(len(scores), dtype=torch.bool)
    of_images = (scores - positive[:, None] + MARGIN).clamp(min=0).masked_fill(diagonal, 0)
    of_texts = (scores - positive[None] + MARGIN).clamp(min=0).masked_fill(diagonal, 0)
    return (of_images.sum() + of_texts.sum()) / (2 * len(scores))


def six_line_selhn(scores: Tensor) -> Tensor:
    """T-SelHN."""
    positive, diagonal = scores.diagonal(), torch.eye(len(scores), dtype=torch.bool)
    hinges = [
        (s - positive[:, None] + MARGIN).clamp(min=0).masked_fill(diagonal, 0) for s in (scores, scores.T)
    ]
    hardest = [scores.masked_fill(diagonal, -1).amax(dim) for dim in (1, 0)]
    each = [torch.where((h - positive).abs() > EPSILON, (h - positive + MARGIN).clamp(min=0),
                        hinge.sum(1) / (len(scores) - 1)) for h, hinge in zip(hardest, hinges)]  # fmt: skip
    return torch.stack(each).mean()


def six_line_infonce(scores: Tensor) -> Tensor:
    """CLIP's loss."""
    target = torch.arange(len(scores))
    return (cross_entropy(scores / 0.07, target) + cross_entropy(scores.T / 0.07, target)) / 2


def six_line_siglip(scores: Tensor) -> Tensor:
    """SigLIP's loss."""
    sign = 2 * torch.eye(len(scores)) - 1
    return -logsigmoid(sign * (scores * 10 - 10)).sum() / len(scores)


def six_line_tal(scores: Tensor) -> Tensor:
    """The hinge of the log-sum-exp."""
    positive, diagonal = scores.diagonal(), torch.eye(len(scores), dtype=torch.bool)
    negatives = scores.masked_fill(diagonal, -torch.inf) / 0.02
    of_images = (0.02 * negatives.logsumexp(1) - positive + 0.1).clamp(min=0)
    of_texts = (0.02 * negatives.logsumexp(0) - positive + 0.1).clamp(min=0)
    return (of_images.sum() + of_texts.sum()) / (2 * len(scores))


SIX_LINES = {
    name.removeprefix("six_line_"): made for name, made in list(globals().items()) if "six_line_" in name
}
NAMES = ("hn", "selhn", "triplet", "infonce", "siglip", "tal")


def pairs(kind: str, batch: int) -> list[Tensor]:
    """Unit rows: texts near their images, or everything near one point."""
    generator = torch.Generator().manual_seed(0)
    images, texts = normalize(torch.randn(2, batch, WIDTH, generator=generator), dim=2)
    if kind == "collapsed":
        images, texts = (
            normalize(1 + 1e-3 * images * WIDTH**0.5, dim=1),
            normalize(1 + 1e-3 * texts * WIDTH**0.5, dim=1),
        )
    else:
        texts = normalize(0.28 * images + texts, dim=1)
    return [images, texts]


def timed(loss: Callable[..., Tensor], inputs: list[Tensor], calls: int) -> float:
    """The least CPU time of a forward and a backward pass."""
    best = float("inf")
    for _ in range(calls):
        leaves = [one.clone().requires_grad_() for one in inputs]
        start = time.process_time()
        loss(*leaves).backward()
        best = min(best, time.process_time() - start)
    return best


def measured(form: str, name: str, kind: str, batch: int, calls: int) -> float:
    """Seconds of one loss in one form."""
    images, texts = pairs(kind, batch)
    scores = [images @ texts.T] if form != "embeddings" else []
    if form == "six lines":
        return timed(SIX_LINES[name], scores, calls)
    from selhn.losses import create_loss

    loss = create_loss(name, **{"tal": {"margin": 0.1}, "siglip": {"learn": False}}.get(name, {}))
    return timed(loss, scores, calls) if scores else timed(loss.from_embeddings, [images, texts], calls)


class Checkout:
    """A process that measures with the package of another folder."""

    def __init__(self, folder: Path):
        paths = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], env={**os.environ, "PYTHONPATH": paths}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *question: object) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def row(
    form: str, name: str, kind: str, batch: int, other: Callable[..., float], other_form: str
) -> list[str]:
    """A line of a table: both times, and how many times the other's this is."""
    calls, turns = max(2, min(30, 2**22 // batch**2)), 3 if batch > 4096 else 8
    here, there = float("inf"), float("inf")
    for _ in range(turns):
        there = min(there, other(other_form, name, kind, batch, calls))
        here = min(here, measured(form, name, kind, batch, calls))
    return [
        form,
        name,
        kind,
        f"{batch:,}",
        f"{there * 1e3:,.3f}",
        f"{here * 1e3:,.3f}",
        f"{here / there:.2f}",
    ]


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, default=None, help="another checkout of this repository")
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--scores", type=int, nargs="*", default=SCORES, help="batches from scores")
    parser.add_argument(
        "--embeddings", type=int, nargs="*", default=EMBEDDINGS, help="batches from embeddings"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.serve:
        for line in sys.stdin:
            print(measured(*json.loads(line)), flush=True)
        return
    from report import environment, table

    rows = []
    for batch in arguments.scores:
        for name in arguments.names:
            rows.append(row("scores", name, "trained", batch, measured, "six lines"))
            print(*rows[-1], flush=True)
    if arguments.against:
        other = Checkout(arguments.against)
        for form, batches in (("scores", arguments.scores), ("embeddings", arguments.embeddings)):
            for batch in batches:
                for name in arguments.names:
                    kinds = ["trained", *(["collapsed"] if name == "selhn" else [])]
                    for kind in kinds:
                        rows.append(["(checkout)", *row(form, name, kind, batch, other, form)][1:])
                        print("against the checkout:", *rows[-1], flush=True)
    print(environment(), table(["form", "loss", "pairs", "B", "other ms", "ms", "ratio"], rows), sep="\n\n")


if __name__ == "__main__":
    main()
