"""The figures of the paper, drawn from the logs and results of runs; nothing here trains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from selhn.base.files import write_whole
from selhn.diagnose.logs import Column, smoothed
from selhn.diagnose.plots import COLOURS, draw_level, pyplot, save_figure
from selhn.eval import Metrics
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import LOSSES, PAPER, RUNS, VSEPP, Wanted, recipe

LOSS_COLOURS = {"Triplet": COLOURS[2], "T-HN": COLOURS[0], "SelHN": COLOURS[1]}
CLASSICAL = {
    "VSE++": VSEPP,
    "SCAN (t2i AVG)": recipe("scan_t2i_avg_hn"),
    "SAF": recipe("saf_hn"),
    "SGR": recipe("sgr_hn"),
}
EPSILONS = {
    "0": recipe("rvse_hn"),  # what the paper says epsilon = 0 is
    "0.0001": Wanted("rvse_selhn_1e-4", "rvse_selhn", ("loss.epsilon=0.0001",)),
    "0.001": Wanted("rvse_selhn_1e-3", "rvse_selhn", ("loss.epsilon=0.001",)),
    "0.01": recipe("rvse_selhn"),
    "0.1": Wanted("rvse_selhn_1e-1", "rvse_selhn", ("loss.epsilon=0.1",)),
}
BRANCHES = {"RVSE (MLP), BiGRU": recipe("rvse_selhn"), "RVSE++, BERT": recipe("rvsepp_selhn")}
SYSTEMS = (("RVSE++", "SelHN"), ("RVSE (MLP)", "SelHN"), ("VSE-infinity", "T-HN"), ("SCAN", "T-HN"), ("SCAN", "SelHN"),
           ("BFAN", "T-HN"), ("BFAN", "SelHN"), ("SGRAF", "T-HN"), ("SGRAF", "SelHN"))  # fmt: skip

draw_outside = partial(draw_level, shift=(4, 0), x=1, ha="left", va="center", fontsize=9)
"""A level labelled outside the axes, because the curves come close to it."""


@dataclass(frozen=True)
class Figure:
    """A figure: the runs it needs, and the function that draws them into a file."""

    title: str
    draw: Callable[[PaperRuns, Path], Path]
    runs: tuple[Wanted, ...] = ()


def copy_drawing(runs: PaperRuns, path: Path) -> Path:
    """A schematic figure: an SVG file that is shipped with the package and copied beside the others."""
    drawing = path.with_suffix(".svg")
    write_whole(drawing, (PAPER / drawing.name).read_bytes())
    return drawing


def draw_classical(runs: PaperRuns, path: Path) -> Path:
    """Loss per anchor of models trained with T-HN: running mean, and deviation as a band (figure 1)."""
    figure, axis = pyplot().subplots(figsize=(6.2, 3.8), layout="constrained")
    for (name, wanted), colour in zip(CLASSICAL.items(), COLOURS):
        if logs := runs.logs(wanted):
            at, mean, deviation = _band(logs, "loss_per_anchor")
            axis.fill_between(at, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
            axis.plot(at, mean, color=colour, linewidth=1.8, label=name)
    draw_outside(axis, 0.2, "margin\n0.2")
    axis.set(xlabel="epoch", ylabel="loss per anchor, T-HN", ylim=(0, None))
    axis.margins(x=0)
    axis.legend(frameon=False, loc="lower left")
    return save_figure(figure, path)


def draw_losses(losses: Mapping[str, Wanted], title: str, runs: PaperRuns, path: Path) -> Path:
    """Loss, gradient of the FC layer, RSUM and delta_s of one model with each loss (figures 3 and 5)."""
    figure, grid = pyplot().subplots(2, 2, figsize=(8.4, 5.8), layout="constrained")
    (loss, gradient), (rsum, gap) = grid
    for name, wanted in losses.items():
        line = {"color": LOSS_COLOURS[name], "linewidth": 1.8, "label": name}
        if logs := runs.logs(wanted):
            # The sum over all negatives is larger by their number, so their mean is shown.
            share = runs.config(wanted, runs.seeds[0]).train.batch_size - 1 if name == "Triplet" else 1
            for axis, key in ((loss, "loss_per_anchor"), (gradient, "grad_image_fc"), (gap, "delta_s")):
                at, mean, _ = _band(logs, key)
                axis.plot(at, mean / (share if axis is not gap else 1), **line)
            measured = [[row["dev"]["rsum"] for row in log if "dev" in row] for log in logs]
            epochs = np.arange(len(measured[0])) + 1
            rsum.plot(epochs, np.mean(measured, axis=0), marker="o", markersize=3, **line)
    draw_outside(loss, 0.2, "margin\n0.2")
    draw_outside(gap, 0.01, "$\\epsilon$\n0.01")
    loss.set(title="(a) loss per anchor", ylim=(0, None))
    gradient.set(title="(b) gradient of the FC layer, norm", yscale="log")
    rsum.set(title="(c) RSUM on dev", xlabel="epoch", ylim=(0, None))
    gap.set(title=r"(d) $\Delta s$: hardest negative against positive", xlabel="epoch", yscale="log")
    loss.legend(frameon=False)
    figure.suptitle(f"{title}; Triplet in (a) and (b): mean over its negatives", fontsize=11)
    return save_figure(figure, path)


def draw_epsilon(runs: PaperRuns, path: Path) -> Path:
    """R@1, R@5 and R@10 of RVSE over epsilon, one panel per direction (figure 6)."""
    figure, panels = pyplot().subplots(1, 2, figsize=(8.4, 3.5), layout="constrained", sharey=True)
    found = {value: metrics for value, wanted in EPSILONS.items() if (metrics := runs.metrics([wanted]))}
    places = np.arange(len(found))
    for axis, way, title in zip(panels, ("i2t", "t2i"), ("(a) image to text", "(b) text to image")):
        for k, colour in zip((10, 5, 1), (COLOURS[2], COLOURS[0], COLOURS[1])):
            values = [[getattr(one, way)[k] for one in metrics] for metrics in found.values()]
            spread = np.array([np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in values])
            means = [np.mean(each) for each in values]
            look = {"linewidth": 1.8, "marker": "o", "markersize": 4}
            axis.errorbar(places, means, spread, color=colour, capsize=3 if spread.any() else 0, **look)
            end = {"textcoords": "offset points", "va": "center", "color": colour}
            axis.annotate(f"R@{k}", (places[-1], means[-1]), (8, 0), **end)
        axis.set_xticks(places, [_power(value) for value in found])
        axis.set(title=title, xlabel=r"$\epsilon$  (0 is T-HN)", ylim=(0, None))
    panels[0].set_ylabel("recall, %")
    return save_figure(figure, path)


def draw_branches(runs: PaperRuns, path: Path) -> Path:
    """The share of anchors in each branch of SelHN over training (figure 7)."""
    present = {title: logs for title, wanted in BRANCHES.items() if (logs := runs.logs(wanted))}
    number = max(1, len(present))
    how = {"figsize": (4.3 * number, 3.4), "layout": "constrained", "sharey": True, "squeeze": False}
    figure, panels = pyplot().subplots(1, number, **how)
    for axis, (title, logs) in zip(panels[0], present.items()):
        at, mined, _ = _band(logs, "separated")
        mined = 100 * mined
        parts = {"hardest negative": (0, mined, "T-HN"), "mean over all negatives": (mined, 100, "Triplet")}
        for words, (low, high, loss) in parts.items():
            label = words if axis is panels[0, 0] else ""
            axis.fill_between(at, low, high, color=LOSS_COLOURS[loss], alpha=0.7, linewidth=0, label=label)
        axis.set(title=title, xlabel="epoch", xlim=(0, at[-1]), ylim=(0, 100))
        axis.xaxis.get_major_locator().set_params(integer=True)
    panels[0, 0].set_ylabel("share of anchors, %")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return save_figure(figure, path)


def draw_speed(runs: PaperRuns, path: Path) -> Path:
    """Test RSUM against pairs scored per second; a system of two models scores with both in turn (figure 8)."""
    figure, axis = pyplot().subplots(figsize=(6.4, 4.2), layout="constrained")
    points = []
    for method, loss in SYSTEMS:
        members = RUNS[(method, loss)]
        if metrics := runs.metrics(members):
            speed, rsum = runs.pairs_a_second(members) / 1000, Metrics.mean(metrics).rsum
            axis.scatter(speed, rsum, s=60, color=LOSS_COLOURS[loss], zorder=3)
            points.append((speed, rsum, method))
    labels = label_places([(speed, rsum) for speed, rsum, _ in points])
    for (speed, rsum, method), place in zip(points, labels):
        axis.annotate(method, (speed, rsum), **place, textcoords="offset points", fontsize=9)
    for loss in ("T-HN", "SelHN"):
        axis.scatter([], [], s=60, color=LOSS_COLOURS[loss], label=loss)
    axis.set(xscale="log", xlabel="thousand pairs per second, encoding included", ylabel="RSUM on test")
    axis.margins(x=0.18, y=0.15)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return save_figure(figure, path)


def label_places(points: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Where the name of each point is written: above it, or beside it if another point is close.

    Close is what a label would cover: a twentieth of the height, a third of the width on a logarithmic axis.
    """
    if not points:
        return []
    speeds, rsums = np.log([speed for speed, _ in points]), np.array([rsum for _, rsum in points])
    width, height = np.ptp(speeds) or 1.0, np.ptp(rsums) or 1.0
    places: list[dict[str, Any]] = []
    for speed, rsum in zip(speeds, rsums):
        near = speeds[(np.abs(speeds - speed) < width / 3) & (np.abs(rsums - rsum) < height / 8)]
        if len(near) == 1:
            places.append({"xytext": (0, 7), "ha": "center", "va": "bottom"})
        else:  # points on the left are labelled on the left, so that two neighbours never overlap
            side, shift = ("right", -8) if speed <= near.mean() else ("left", 8)
            places.append({"xytext": (shift, 0), "ha": side, "va": "center"})
    return places


def three_losses(model: str, title: str) -> Figure:
    """The figure of one model with the three losses of Table 1."""
    runs = {name: recipe(f"{model}_{loss}") for name, loss in LOSSES.items()}
    draw = partial(draw_losses, runs, title)
    return Figure(f"Training {title} with three losses", draw, tuple(runs.values()))


FIGURES: Mapping[str, Figure] = {
    "fig1": Figure("Training loss of classical models with T-HN", draw_classical, tuple(CLASSICAL.values())),
    "fig2": Figure("Three image encoders", copy_drawing),
    "fig3": three_losses("vse_fc", "VSE (FC)"),
    "fig4": Figure("The gradient of an anchor, its positive and its negative", copy_drawing),
    "fig5": three_losses("vse_mlp", "VSE (MLP)"),
    "fig6": Figure("What epsilon does, RVSE (MLP)", draw_epsilon, tuple(EPSILONS.values())),
    "fig7": Figure("Share of the branches of SelHN over training", draw_branches, tuple(BRANCHES.values())),
    "fig8": Figure(
        "Matching quality against speed", draw_speed, tuple(run for key in SYSTEMS for run in RUNS[key])
    ),
    "fig9": Figure("The MLP", copy_drawing),
}
"""In the order of the paper; fig9 is in its appendix. In fig5 the paper shows panels (a) and (d) only."""


def _band(logs: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[Column, Column, Column]:
    """Epochs passed, and the running mean and deviation of a number over steps and seeds."""
    steps = [[row for row in log if key in row] for log in logs]
    values = np.array([[row[key] for row in rows] for rows in steps])
    mean, square = smoothed(values.mean(axis=0)), smoothed((values**2).mean(axis=0))
    passed = np.array([row["step"] for row in steps[0]]) * (steps[0][-1]["epoch"] + 1) / steps[0][-1]["step"]
    return passed, mean, np.sqrt(np.maximum(square - mean**2, 0))


def _power(value: str) -> str:
    return "0" if value == "0" else f"$10^{{{round(np.log10(float(value)))}}}$"
