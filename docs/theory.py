"""Draws the three figures of docs/theory.md: embeddings moved by a loss, the tangent part of a gradient, a shared mean.

python docs/theory.py
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selhn.diagnose.logs import smoothed
from selhn.diagnose.plots import COLOURS, pyplot, save_figure
from selhn.losses import AbstractLoss, Triplet, TripletHN, TripletSelHN

FOLDER = Path(__file__).parent
MARGIN, EPSILON = 0.2, 0.01
POOL, CONTENT, WIDTH = 2048, 16, 32
"""Pairs to draw batches from, width of what a pair is about, and width of the features of each side."""
SIGNAL, NOISE = 1.0, 1.0
"""How strong what a pair shares is, and what its sides do not share."""


def pairs(mean: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of both sides of all pairs: a shared content, noise of their own, and a mean that all features have."""
    draw = torch.Generator().manual_seed(seed)

    def side() -> Tensor:
        view = torch.randn(CONTENT, WIDTH, generator=draw) / CONTENT**0.5
        noise = NOISE * torch.randn(POOL, WIDTH, generator=draw)
        return (
            SIGNAL * content @ view
            + noise
            + mean * normalize(torch.randn(WIDTH, generator=draw), dim=0) * WIDTH**0.5
        )

    content = torch.randn(POOL, CONTENT, generator=draw)
    return side(), side()


def learn(
    loss_fn: AbstractLoss,
    batch: int,
    mean: float = 2.0,
    dropout: float = 0.0,
    steps: int = 600,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Two linear encoders trained from embeddings that are all close together, and how far they spread after that.

    `spread` is the mean distance of two texts, which is 0 at collapse; `top` the share of images of a batch whose text
    scores highest.
    """
    images, texts = pairs(mean, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    layers = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=draw) / WIDTH**0.5) for _ in range(2)]
    optimizer = torch.optim.Adam(layers, lr=2e-3)
    seen: dict[str, list[float]] = {"loss": [], "spread": [], "top": []}
    for _ in range(steps):
        rows = torch.randint(POOL, (batch,), generator=draw)
        sides = [images[rows], texts[rows]]
        if dropout:
            sides = [
                side * (torch.rand(side.shape, generator=draw) > dropout) / (1 - dropout) for side in sides
            ]
        v, t = (normalize(side @ layer, dim=1) for side, layer in zip(sides, layers))
        scores = v @ t.T
        loss = loss_fn(scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            v, t = (normalize(side[:256] @ layer, dim=1) for side, layer in zip((images, texts), layers))
            seen["loss"].append(loss.item())
            seen["spread"].append(torch.pdist(t).mean().item())
            seen["top"].append(100 * ((v @ t.T).argmax(1) == torch.arange(256)).float().mean().item())
    return seen


LOSSES: dict[str, tuple[Callable[[], AbstractLoss], str]] = {
    "T-HN": (lambda: TripletHN(MARGIN), COLOURS[0]),
    "SelHN": (lambda: TripletSelHN(MARGIN, EPSILON), COLOURS[1]),
    "Triplet": (lambda: Triplet(MARGIN), COLOURS[2]),
}
SHADES = ("#fdba74", "#f97316", "#c2410c", "#7c2d12")
"""T-HN from the smallest to the largest of something."""


def near_collapse(
    spread: float, batch: int, seed: int = 0, width: int = 64, correlation: float = 0.3
) -> tuple[float, float]:
    """T-HN and the mean over all negatives, per anchor, if embeddings are within `spread` of one point.

    The two sides of a pair deviate from that point in directions with this correlation, at right angles to it.
    """
    draw = torch.Generator().manual_seed(seed)
    point = normalize(torch.randn(width, generator=draw), dim=0).double()
    images, own = (normalize(torch.randn(batch, width, generator=draw).double(), dim=1) for _ in range(2))
    texts = normalize(correlation * images + (1 - correlation**2) ** 0.5 * own, dim=1)
    v, t = (
        normalize(point + spread * (side - side @ point[:, None] * point), dim=1) for side in (images, texts)
    )
    scores = v @ t.T
    return TripletHN(MARGIN)(scores).item(), Triplet(MARGIN)(scores).item() / (batch - 1)


def tangent_parts(number: int = 60, seed: int = 0) -> dict[str, Tensor]:
    """Gradients of T-HN by autograd on random triplets: the parts that survive normalisation, and both formulas."""
    draw = torch.Generator().manual_seed(seed)
    v, t, n = (
        normalize(torch.randn(number, 3, generator=draw).double(), dim=1).requires_grad_() for _ in range(3)
    )
    s_p, s_n = (v * t).sum(1), (v * n).sum(1)
    on_v, on_t = torch.autograd.grad((s_n - s_p).sum(), (v, t))
    v, t, n, s_p, s_n = (each.detach() for each in (v, t, n, s_p, s_n))
    apart, gap = (n - t).norm(dim=1), s_n - s_p
    return {
        "v": (on_v - (on_v * v).sum(1, keepdim=True) * v).norm(dim=1),
        "v_true": (apart**2 - gap**2).sqrt(),
        "v_paper": apart * gap.abs(),
        "t": (on_t - (on_t * t).sum(1, keepdim=True) * t).norm(dim=1),
        "angle": s_p.clamp(-1, 1).arccos().rad2deg(),
    }


def draw_tangent(path: Path) -> None:
    """The sine, and the cosine that the paper has in its place."""
    parts = tangent_parts()
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(8.8, 3.6), layout="constrained")
    angle = torch.linspace(0, 180, 181)
    left.plot(angle, angle.deg2rad().sin(), color=COLOURS[1], linewidth=2, label=r"$\sin\beta$")
    left.plot(
        angle,
        angle.deg2rad().cos(),
        color=COLOURS[0],
        linewidth=2,
        label=r"$\cos\beta$, the paper's equation 8",
    )
    left.scatter(parts["angle"], parts["t"], s=14, color="#111", zorder=3, label="measured by autograd")
    left.set(
        xlabel=r"angle $\beta$ between $v$ and $t$, degrees", title="(a) acting gradient on the positive $t$"
    )
    left.set_xticks([0, 45, 90, 135, 180])
    left.legend(frameon=False, loc="lower left", fontsize=9)
    right.plot([0, 2], [0, 2], color="#666", linewidth=1, linestyle=(0, (4, 3)))
    right.scatter(
        parts["v"], parts["v_true"], s=16, color=COLOURS[1], label=r"$\sqrt{|\hat{t}-t|^2-\Delta s^2}$"
    )
    right.scatter(
        parts["v"], parts["v_paper"], s=16, color=COLOURS[0], label=r"$|\hat{t}-t|\cdot\Delta s$, equation 8"
    )
    right.set(
        xlabel="measured by autograd",
        ylabel="formula",
        title="(b) acting gradient on the anchor $v$",
        ylim=(-0.2, 5),
    )
    right.legend(frameon=False, loc="upper left", fontsize=9)
    save_figure(figure, path, dpi=130)
    off = (parts["v"] - parts["v_true"]).abs().max()
    print(f"tangent part on v: sqrt(|t_n - t|^2 - delta_s^2) is off by at most {off:.0e}")


def draw_collapse(path: Path) -> None:
    """Why the collapsed state draws T-HN in and lets an average out, and what batches and dropout do to it."""
    figure, grid = pyplot().subplots(2, 2, figsize=(9.2, 6.6), layout="constrained")
    (at_rest, by_loss), (by_batch, by_dropout) = grid
    spreads = torch.linspace(0, 0.3, 16).tolist()
    for batch, shade in zip((8, 128, 2048), SHADES):
        values = [near_collapse(spread, batch)[0] for spread in spreads]
        at_rest.plot(spreads, values, color=shade, linewidth=2, label=f"T-HN, B = {batch}")
    at_rest.plot(
        spreads,
        [near_collapse(spread, 128)[1] for spread in spreads],
        color=COLOURS[2],
        linewidth=2,
        label="Triplet, mean",
    )
    at_rest.set(
        title="(a) loss near collapse",
        xlabel="distance of the embeddings from one point",
        ylabel="loss per anchor",
    )
    for name, (make, colour) in LOSSES.items():
        by_loss.plot(
            report(f"{name}, B = 128", learn(make(), 128))["spread"], color=colour, linewidth=2, label=name
        )
    by_loss.set(title="(b) training, B = 128", xlabel="step", ylabel="distance of two texts")
    for batch, shade in zip((8, 32, 128, 512), SHADES):
        seen = report(f"T-HN, B = {batch}", learn(TripletHN(MARGIN), batch))
        by_batch.plot(smoothed(np.array(seen["spread"])), color=shade, linewidth=2, label=f"B = {batch}")
    by_batch.set(title="(c) T-HN, batch size", xlabel="step", ylabel="distance of two texts")
    for dropout, style in ((0.0, "-"), (0.2, "--"), (0.4, ":")):
        for name in ("T-HN", "SelHN"):
            seen = report(f"{name}, dropout {dropout}", learn(LOSSES[name][0](), 128, dropout=dropout))
            by_dropout.plot(
                smoothed(np.array(seen["top"])),
                color=LOSSES[name][1],
                linewidth=2,
                linestyle=style,
                label=f"{name}, {dropout:.0%}",
            )
    by_dropout.set(title="(d) dropout on features, B = 128", xlabel="step", ylabel="R@1 among 256, %")
    for axis in grid.flat:
        place = {"loc": "upper right", "bbox_to_anchor": (1, 0.9)} if axis is by_loss else {}
        axis.legend(frameon=False, fontsize=9, **place)
    save_figure(figure, path, dpi=130)


def draw_mean(path: Path) -> None:
    """What a mean that all features share does."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(8.8, 3.6), layout="constrained")
    means = (0.0, 1.0, 2.0, 4.0)
    ends: dict[str, list[float]] = {name: [] for name in LOSSES}
    for mean, shade in zip(means, SHADES):
        for name, (make, _) in LOSSES.items():
            seen = report(f"{name}, mean {mean:g}", learn(make(), 128, mean=mean))
            ends[name].append(sum(seen["top"][-50:]) / 50)
            if name == "T-HN":
                left.plot(seen["spread"], color=shade, linewidth=2, label=f"mean {mean:g}")
    left.set(title="(a) T-HN, B = 128", xlabel="step", ylabel="distance of two texts", ylim=(0, None))
    for name, (_, colour) in LOSSES.items():
        right.plot(range(len(means)), ends[name], color=colour, linewidth=2, marker="o", label=name)
    right.set_xticks(range(len(means)), [f"{mean:g}" for mean in means])
    right.set(
        title="(b) after 600 steps",
        xlabel="shared mean of the features",
        ylabel="R@1 among 256, %",
        ylim=(0, None),
    )
    left.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.92))
    right.legend(frameon=False, fontsize=9)
    save_figure(figure, path, dpi=130)


def report(name: str, seen: dict[str, list[float]]) -> dict[str, list[float]]:
    """Say in a line what became of a training."""
    last = {key: sum(values[-50:]) / 50 for key, values in seen.items()}
    print(f"{name:20} distance of two texts {seen['spread'][0]:.3f} -> {last['spread']:.3f}, "
          f"least {min(seen['spread']):.3f}; loss {last['loss']:.3f}, R@1 {last['top']:.1f}", flush=True)  # fmt: skip
    return seen


if __name__ == "__main__":
    draw_tangent(FOLDER / "theory_tangent.png")
    draw_collapse(FOLDER / "theory_collapse.png")
    draw_mean(FOLDER / "theory_mean.png")
