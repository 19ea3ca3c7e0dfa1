"""The diagrams of the paper: encoders, the MLP, and the gradients of a triplet on the circle."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selhn.diagnose.figures import COLOURS, pyplot

NEGATIVE, IMAGE, POSITIVE = COLOURS[0], COLOURS[1], COLOURS[2]
INK, FAINT = "#1f2937", "#9ca3af"
FILL = {"data": "#f3f4f6", "layer": "#dbeafe", "norm": "#fef3c7", "pool": "#dcfce7"}
BOX = 0.66
"""Height of a box."""
FORCE = 0.62
"""Length of a force of size 1 in the picture."""
Vector = npt.NDArray[np.float64]


def draw_encoders(path: Path) -> Path:
    """Regions through FC, the MLP and GPO: VSE (FC), VSE (MLP) and RVSE (figure 2)."""
    figure, panels = pyplot().subplots(1, 3, figsize=(8.4, 4.4), layout="constrained")
    for axis, title in zip(panels, ("(a) VSE (FC)", "(b) VSE (MLP)", "(c) RVSE (MLP)")):
        has_mlp, is_residual = "MLP" in title, "RVSE" in title
        _box(axis, 0, "M regions, 2048", "data")
        _box(axis, 1.2, "FC", "layer")
        _up(axis, 0, 1.2)
        if has_mlp:
            _box(axis, 2.6, "MLP", "layer")
            _up(axis, 1.2, 2.6)
        if is_residual:
            _arrow(axis, (0, 2.6 + BOX / 2), (0, 3.43))
            axis.plot(0, 3.6, "o", markersize=17, markerfacecolor="white", markeredgecolor=INK, markeredgewidth=1.3)
            axis.plot(0, 3.6, "+", markersize=9, color=INK, markeredgewidth=1.3)
            axis.plot([0, 1.35, 1.35], [1.9, 1.9, 3.6], color=INK, linewidth=1.6, solid_joinstyle="round")
            _arrow(axis, (1.35, 3.6), (0.17, 3.6))
            _arrow(axis, (0, 3.77), (0, 4.6 - BOX / 2))
        else:
            _up(axis, 2.6 if has_mlp else 1.2, 4.6)
        _box(axis, 4.6, "GPO", "pool")
        _up(axis, 4.6, 5.8)
        _box(axis, 5.8, r"$v$,   $|v| = 1$", "data")
        _blank(axis, (-1.6, 1.6), (-0.4, 6.2))
        axis.set_title(title, y=-0.09, fontsize=12)
    return _save(figure, path)


def draw_mlp(path: Path) -> Path:
    """The MLP of VSE (MLP), RVSE and RVSE++ as it is by default; boxes are as wide as what they hold (figure 9)."""
    figure, axis = pyplot().subplots(figsize=(4.6, 4.2), layout="constrained")
    steps = (("region,  d", "data", 2.4), ("FC   d → d/2", "layer", 2.0), ("BN", "norm", 1.3), ("ReLU", "data", 1.3),
             ("FC   d/2 → d", "layer", 2.0), ("region,  d", "data", 2.4))  # fmt: skip
    for number, (words, kind, width) in enumerate(steps):
        _box(axis, 1.15 * number, words, kind, width)
        if number:
            _up(axis, 1.15 * (number - 1), 1.15 * number)
    axis.text(1.05, 2.3, "the paper has two BN and\ndoes not say where:\nmlp_order has all three", va="center",
              fontsize=9.5, color="#4b5563")  # fmt: skip
    _blank(axis, (-1.3, 3.0), (-0.45, 6.2))
    return _save(figure, path)


def draw_gradients(path: Path) -> Path:
    """What T-HN does to an anchor v, its positive t and its hardest negative (figure 4), with sines where they belong.

    (a) the angles; (b) on v acts the tangent part of t - t_n, the radial part is normalised away; (c) delta_s = 0 with
    the two on either side of v: the forces are as strong as ever; (d) collapse: each force is met by its opposite.
    """
    figure, panels = pyplot().subplots(2, 2, figsize=(7.6, 5.2), layout="constrained")
    _draw_angles(panels[0, 0], _unit(90), _unit(62), _unit(132))
    _draw_tangent(panels[0, 1], _unit(90), _unit(62), _unit(142))
    _draw_forces(panels[1, 0], _unit(90), _unit(58), _unit(122))
    _draw_forces(panels[1, 1], _unit(90), _unit(57), _unit(60))
    titles = (
        "(a) scores are the cosines\nof two angles",
        "(b) of the force $t-\\hat{t}$ on $v$ only\nthe tangent part acts",
        "(c) $\\Delta s=0$, but apart: $t$ and $\\hat{t}$ are\nturned the same way, by $\\sin\\beta$",
        "(d) collapse, $\\hat{t}\\to t$: the forces are\nequal and opposite",
    )
    for axis, title in zip(panels.flat, titles):
        axis.set_title(title, fontsize=11)
    return _save(figure, path)


def _draw_angles(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    for vector, name, colour in ((v, "$v$", IMAGE), (t, "$t$", POSITIVE), (n, "$\\hat{t}$", NEGATIVE)):
        _arrow(axis, (0, 0), vector, colour)
        axis.text(*(1.1 * vector), name, color=colour, fontsize=14, ha="center", va="center")
    for end, radius, name, place in (
        (t, 0.5, r"$\beta(v,t)$", (0.42, 0.42)),
        (n, 0.5, r"$\beta(v,\hat{t})$", (-0.5, 0.38)),
    ):
        angles = np.linspace(_angle(v), _angle(end), 30)
        axis.plot(radius * np.cos(angles), radius * np.sin(angles), color=INK, linewidth=1.2)
        axis.text(*place, name, ha="left" if end is t else "right", va="center", fontsize=11, color=INK)


def _draw_tangent(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    _rays(axis, v, t, n)
    force = t - n
    radial = (force @ v) * v
    tangent = force - radial
    axis.plot(*zip(n, t), color=FAINT, linewidth=1.3, linestyle=(0, (4, 3)))
    tip, foot = v + FORCE * force, v + FORCE * tangent
    axis.plot(*zip(foot, tip, v + FORCE * radial), color=FAINT, linewidth=1, linestyle=(0, (2, 2)))
    _force(axis, v, radial, FAINT)
    _force(axis, v, force, INK)
    _force(axis, v, tangent, "#15803d")
    axis.annotate("$t-\\hat{t}$", tip, (6, 2), textcoords="offset points", fontsize=12, color=INK, va="center")
    axis.annotate("tangent part", foot, (4, -9), textcoords="offset points", fontsize=10, color="#15803d", ha="center",
                  va="center")  # fmt: skip


def _draw_forces(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    _rays(axis, v, t, n)
    for place, pull, colour in ((t, v, POSITIVE), (n, -v, NEGATIVE)):
        _force(axis, place, pull - (pull @ place) * place, colour)


def _rays(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    """The three vectors, with their names beside them: the tips are where the forces are."""
    for vector, name, colour, side in ((v, "$v$", IMAGE, 1), (t, "$t$", POSITIVE, -1), (n, "$\\hat{t}$", NEGATIVE, 1)):
        _arrow(axis, (0, 0), vector, colour)
        beside = np.array([-vector[1], vector[0]]) * 0.11 * side
        axis.text(*(0.6 * vector + beside), name, color=colour, fontsize=14, ha="center", va="center")


def _circle(axis: Any) -> None:
    angles = np.linspace(np.radians(12), np.radians(168), 100)
    axis.plot(np.cos(angles), np.sin(angles), color=FAINT, linewidth=1.4)
    axis.plot(0, 0, "o", color=INK, markersize=3)
    axis.set_aspect("equal")
    _blank(axis, (-1.15, 1.35), (-0.06, 1.3))


def _force(axis: Any, start: Vector, force: Vector, colour: str) -> None:
    _arrow(axis, start, start + FORCE * force, colour, width=2.4)


def _unit(degrees: float) -> Vector:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def _angle(vector: Vector) -> float:
    return float(np.arctan2(vector[1], vector[0]))


def _box(axis: Any, height: float, words: str, kind: str, width: float = 2.0) -> None:
    from matplotlib.patches import FancyBboxPatch

    style: dict[str, Any] = {"facecolor": FILL[kind], "edgecolor": INK, "linewidth": 1.3}
    corner = (-width / 2, height - BOX / 2)
    axis.add_patch(FancyBboxPatch(corner, width, BOX, boxstyle="round,pad=0,rounding_size=0.12", **style))
    axis.text(0, height, words, ha="center", va="center", fontsize=11.5, color=INK)


def _up(axis: Any, below: float, above: float) -> None:
    """From one box to the next."""
    _arrow(axis, (0, below + BOX / 2), (0, above - BOX / 2))


def _arrow(axis: Any, start: Any, end: Any, colour: str = INK, width: float = 1.6) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13}
    axis.annotate("", tuple(end), tuple(start), arrowprops=style)


def _blank(axis: Any, across: tuple[float, float], up: tuple[float, float]) -> None:
    axis.set(xlim=across, ylim=up)
    axis.set_axis_off()


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
    return path
