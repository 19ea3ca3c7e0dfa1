"""The attention of one pair as a picture: a map of words and regions, and the image once for every word."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from torch import Tensor

from selhn.base.types import Attention
from selhn.diagnose.plots import COLOURS, pyplot, write_figure

WIDTH = 11.0
IN_A_ROW = 6
FAINT = 0.02
"""Boxes that would be paler than this are not drawn."""


def attention_figure(
    attention: Attention, path: str | Path, picture: npt.NDArray[Any] | None = None, aspect: float = 4 / 3
) -> Path:
    """Draw where words and regions look, one map per direction.

    If the boxes of the regions are known, a panel per word below shows them shaded by their weights, on the
    `picture` (height, width, 3), or without one on an empty canvas of that `aspect`, width by height.
    """
    plt = pyplot()
    maps = [
        (title, weights.cpu())
        for title, weights in (
            ("how each word divides its look among the regions", attention.of_words),
            ("how each region divides its look among the words", attention.of_regions),
        )
        if weights is not None
    ]
    words = [number for number, is_word in enumerate(attention.is_word) if is_word]
    if picture is not None:
        aspect = picture.shape[1] / picture.shape[0]
    num_rows = 0 if attention.boxes is None else -(-len(words) // IN_A_ROW)
    map_height = len(maps) * (0.6 + 0.24 * len(attention.words))
    panel_height = num_rows * (0.6 + (WIDTH - 0.6) / IN_A_ROW / aspect)
    figure = plt.figure(figsize=(WIDTH, 0.4 + map_height + panel_height), layout="constrained")
    sentence = " ".join(attention.words[number] for number in words)
    figure.suptitle(f"“{sentence}”   score {attention.score:.3f}", fontsize=13)
    upper, lower = figure.subfigures(2, 1, height_ratios=(map_height, max(panel_height, 1e-3)))
    for axis, (title, weights) in zip(upper.subplots(len(maps), 1, squeeze=False).flat, maps):
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
    """The weight of the full colour: the largest, but so that a look at all alike stays pale."""
    return max(float(weights.max()), 3 / weights.shape[1])


def _draw_word(axis: Any, attention: Attention, number: int, picture: npt.NDArray[Any] | None, aspect: float) -> None:
    from matplotlib.patches import Rectangle

    assert attention.boxes is not None
    weights = attention.weights[number].cpu()
    shares = (weights / _full(attention.weights[list(attention.is_word)])).clamp(max=1)
    if picture is not None:
        # Paler than it is, so that the boxes are what is seen first.
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
    axis.set_xlabel(f"region {strongest}: {float(weights[strongest]):.0%}", fontsize=8, color="#555", labelpad=2)
