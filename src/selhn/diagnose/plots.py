"""Figures from run logs, and of the attention of one pair; nothing here trains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import MissingExtra, SelhnError, pip_install
from selhn.base.files import write_whole
from selhn.base.types import Attention
from selhn.diagnose.logs import Log, smoothed
from selhn.diagnose.verdict import MANY_ROWS, Verdict

COLOURS = ("#c2410c", "#0369a1", "#4d7c0f", "#7e22ce", "#b45309", "#0f766e")
"""T-HN first, SelHN second, as in all our pictures."""
WIDTH = 11.0
IN_A_ROW = 6
FAINT = 0.02
"""Boxes paler than this are not drawn."""


def training_figure(
    runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    path: str | Path,
    margin: float = 0.2,
    epsilon: float = 0.01,
) -> Path:
    """Loss per anchor, delta_s and RSUM on dev; `runs` has the logs of one or more seeds by name."""
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(12.5, 3.6), layout="constrained")
    for (name, logs), colour in zip(runs.items(), COLOURS):
        for seed, rows in enumerate(logs):
            width = 1.8 if len(logs) == 1 else 1.1
            line = {"color": colour, "linewidth": width, "label": "" if seed else name}
            steps = [row for row in rows if "loss_per_anchor" in row]
            at = [row["step"] for row in steps]
            for axis, key in ((left, "loss_per_anchor"), (middle, "delta_s")):
                axis.plot(at, smoothed(np.array([row[key] for row in steps])), **line)
            measured = [(row["step"], row["dev"]["rsum"]) for row in rows if "dev" in row]
            right.plot(*zip(*measured), marker="o", markersize=3, **line)
    draw_level(left, margin, f"margin {margin:g}", (0, 4))
    draw_level(middle, epsilon, f"epsilon {epsilon:g}", (0, 4))
    middle.set_yscale("log")
    left.set(title="loss per anchor", xlabel="training step", ylim=(0, None))
    middle.set(title="delta_s: hardest negative against positive", xlabel="training step")
    right.set(title="RSUM on dev", xlabel="training step", ylim=(0, None))
    left.legend(frameon=False)
    return save_figure(figure, Path(path))


def verdict_figure(
    log: Log, verdict: Verdict, path: str | Path, plateau: float | None = None, epsilon: float = 0.01
) -> Path:
    """The loss of a log, and delta_s and RSUM if it has them, with the verdict above.

    Everything after the step from which the verdict holds is shaded.
    """
    log = log.thinned(MANY_ROWS)
    has = [("loss", log.loss_name, plateau, "plateau"), ("delta_s", "delta_s", epsilon, "epsilon")]
    shown = [one for one in has if one[0] in log.columns]
    many = len(shown) + bool(log.dev)
    figure, grid = pyplot().subplots(1, many, figsize=(4.2 * many, 3.6), layout="constrained", squeeze=False)
    axes, rows = list(grid[0]), log.steps / log.steps_a_row
    for axis, (name, title, level, word) in zip(axes, shown):
        axis.plot(rows, log.columns[name], color=COLOURS[1], linewidth=0.6, alpha=0.4)
        axis.plot(rows, smoothed(log.columns[name]), color=COLOURS[1], linewidth=1.8)
        axis.set(title=title)
        if level is not None:
            draw_level(axis, level, f"{word} {level:.4g}", (0, -12))
            axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    if log.dev:
        points = zip(*((log.place(step), rsum) for step, rsum in log.dev))
        axes[-1].plot(*points, marker="o", markersize=3, color=COLOURS[2], linewidth=1.8)
        axes[-1].set(title="RSUM on dev", ylim=(0, None))
    for axis in axes:
        axis.set(xlabel="training step" if log.clock == "step" else "row")
        axis.xaxis.get_major_locator().set_params(integer=True)
        if verdict.since is not None:
            axis.axvspan(verdict.since, rows[-1], color=COLOURS[0], alpha=0.08, linewidth=0)
    figure.suptitle(verdict.title)
    return save_figure(figure, Path(path))


def attention_figure(
    attention: Attention, path: str | Path, picture: npt.NDArray[Any] | None = None, aspect: float = 4 / 3
) -> Path:
    """Draw the attention of words and regions, one map per direction.

    If the boxes of the regions are known, one panel per word shows them shaded by their weights, on the
    `picture` (height, width, 3) or, without one, on an empty canvas of that `aspect` (width / height).
    """
    directions = {
        "attention of each word over the regions": attention.of_words,
        "attention of each region over the words": attention.of_regions,
    }
    maps = {title: weights.cpu() for title, weights in directions.items() if weights is not None}
    words = [number for number, is_word in enumerate(attention.is_word) if is_word]
    if picture is not None:
        aspect = picture.shape[1] / picture.shape[0]
    num_rows = 0 if attention.boxes is None else -(-len(words) // IN_A_ROW)
    map_height = len(maps) * (0.6 + 0.24 * len(attention.words))
    panel_height = num_rows * (0.6 + (WIDTH - 0.6) / IN_A_ROW / aspect)
    figure = pyplot().figure(figsize=(WIDTH, 0.4 + map_height + panel_height), layout="constrained")
    sentence = " ".join(attention.words[number] for number in words)
    figure.suptitle(f"“{sentence}”   score {attention.score:.3f}", fontsize=13)
    upper, lower = figure.subfigures(2, 1, height_ratios=(map_height, max(panel_height, 1e-3)))
    for axis, (title, weights) in zip(upper.subplots(len(maps), 1, squeeze=False).flat, maps.items()):
        _draw_map(axis, title, weights, attention)
    if num_rows:
        panels = lower.subplots(num_rows, IN_A_ROW, squeeze=False).flatten()
        for axis, number in zip(panels, words):
            _draw_word(axis, attention, number, picture, aspect)
        for axis in panels[len(words) :]:
            axis.set_axis_off()
    return write_figure(figure, Path(path), dpi=130)


def _draw_map(axis: Any, title: str, weights: Float[Tensor, "N M"], attention: Attention) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("look", ["#ffffff", "#7cb9dd", COLOURS[1], "#0b2f47"])
    image = axis.imshow(weights.numpy(), cmap=colours, vmin=0, vmax=_full(weights), aspect="auto")
    num_words, num_regions = weights.shape
    axis.set_xticks(range(num_regions), [str(number) for number in range(num_regions)], fontsize=8)
    labels = list(attention.words)
    if attention.kept is not None:
        labels = [f"{word}  {share:.0%}" for word, share in zip(labels, attention.kept.tolist())]
    axis.set_yticks(range(num_words), labels, fontsize=9)
    for label, is_word in zip(axis.get_yticklabels(), attention.is_word):
        label.set_color("#111" if is_word else "#999")
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("region", fontsize=9)
    axis.tick_params(length=0)
    axis.set_xticks(np.arange(num_regions + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(num_words + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#e8e8e8", linewidth=0.6)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    bar = axis.figure.colorbar(image, ax=axis, pad=0.01, fraction=0.03, format="{x:.0%}")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0)


def _full(weights: Float[Tensor, "N M"]) -> float:
    """The weight drawn in full colour: the largest, but even attention stays pale."""
    return max(float(weights.max()), 3 / weights.shape[1])


def _draw_word(
    axis: Any, attention: Attention, number: int, picture: npt.NDArray[Any] | None, aspect: float
) -> None:
    from matplotlib.patches import Rectangle

    assert attention.boxes is not None
    weights = attention.weights[number].cpu()
    shares = (weights / _full(attention.weights[list(attention.is_word)])).clamp(max=1)
    if picture is not None:
        # Paler than the original, so that the boxes stand out.
        axis.imshow(picture, extent=(0, 1, 1, 0), aspect="auto", alpha=0.55)
    axis.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], box_aspect=1 / aspect)
    axis.spines[:].set_color("#bbb")
    # The heaviest last, on top of the others.
    for region in shares.argsort().tolist():
        share = float(shares[region])
        if share < FAINT:
            continue
        left, top, right, bottom = attention.boxes[region].tolist()
        box = {"xy": (left, top), "width": right - left, "height": bottom - top}
        axis.add_patch(Rectangle(**box, facecolor=COLOURS[0], alpha=0.5 * share, linewidth=0))
        axis.add_patch(Rectangle(**box, fill=False, edgecolor=COLOURS[0], alpha=share, linewidth=1.6))
    strongest = int(shares.argmax())
    axis.set_title(attention.words[number], fontsize=11)
    axis.set_xlabel(
        f"region {strongest}: {float(weights[strongest]):.0%}", fontsize=8, color="#555", labelpad=2
    )


def draw_level(
    axis: Any, level: float, words: str, shift: tuple[int, int], x: float = 0.98, **look: Any
) -> None:
    """A dashed line at a level, and its name, moved by some points from the line's end at `x`."""
    axis.axhline(level, color="#666", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    look = {"ha": "right", "color": "#444", "textcoords": "offset points", **look}
    axis.annotate(words, (x, level), shift, xycoords=("axes fraction", "data"), **look)


def pyplot() -> Any:
    """matplotlib, set up to work without a screen."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtra(f"figures need matplotlib: {pip_install('plot')}") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Apply the common style and write the file."""
    for axis in figure.axes:
        axis.grid(axis="y", color="#e8e8e8", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(11)
    return write_figure(figure, path, dpi)


def write_figure(figure: Any, path: Path, dpi: int) -> Path:
    """Write a figure in the format given by the file's extension, and close it."""
    if path.suffix and path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise SelhnError(f"{path}: figures cannot be written as {path.suffix}: use .png, .svg or .pdf")
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    write_whole(path, lambda file: figure.savefig(file, dpi=dpi, format=path.suffix[1:].lower()))
    pyplot().close(figure)
    return path
