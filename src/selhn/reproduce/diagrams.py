"""The diagrams of the paper: encoders, the MLP, and the gradients of a triplet on the circle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selhn.diagnose.figures import COLOURS, pyplot

NEGATIVE, IMAGE, POSITIVE = COLOURS[0], COLOURS[1], COLOURS[2]
INK, FAINT = "#1f2937", "#9ca3af"
FILL = {"data": "#f3f4f6", "layer": "#dbeafe", "norm": "#fef3c7", "pool": "#dcfce7"}
Vector = npt.NDArray[np.float64]


def draw_encoders(path: Path) -> Path:
    """Regions through FC, the MLP and GPO: VSE (FC), VSE (MLP) and RVSE (figure 2)."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(8.4, 5.0), layout="constrained")
    for axis, title, mlp, residual in zip(
        panels, ("(a) VSE (FC)", "(b) VSE (MLP)", "(c) RVSE (MLP)"), (False, True, True), (False, False, True)
    ):
        _box(axis, 0.0, "regions  M x 2048", "data")
        _box(axis, 1.5, "FC", "layer")
        _arrow(axis, (0, 0.35), (0, 1.15))
        if mlp:
            _box(axis, 3.2, "MLP", "layer")
            _arrow(axis, (0, 1.85), (0, 2.85))
        if residual:
            _sum(axis, 4.35)
            _arrow(axis, (0, 3.55), (0, 4.18))
            axis.plot([0, 1.3, 1.3], [2.3, 2.3, 4.35], color=INK, linewidth=1.6, solid_joinstyle="round")
            _arrow(axis, (1.3, 4.35), (0.17, 4.35))
        _arrow(axis, (0, 4.52 if residual else 3.55 if mlp else 1.85), (0, 5.05))
        _box(axis, 5.4, "GPO", "pool")
        _arrow(axis, (0, 5.75), (0, 6.55))
        _box(axis, 6.9, r"$v$,  $|v| = 1$", "data")
        axis.set(xlim=(-1.6, 1.6), ylim=(-0.5, 7.4))
        axis.set_axis_off()
        axis.set_title(title, y=-0.06, fontsize=12)
    return _save(figure, path)


def draw_mlp(path: Path) -> Path:
    """The MLP of VSE (MLP), RVSE and RVSE++ as it is by default (figure 9)."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(3.9, 5.4), layout="constrained")
    steps = [("region  d", "data"), ("FC  d → d/2", "layer"), ("BN", "norm"), ("ReLU", "data"),
             ("FC  d/2 → d", "layer"), ("region  d", "data")]  # fmt: skip
    for number, (words, kind) in enumerate(steps):
        _box(axis, 1.2 * number, words, kind)
        if number:
            _arrow(axis, (0, 1.2 * number - 0.85), (0, 1.2 * number - 0.35))
    axis.text(
        1.25,
        2.4,
        "the paper has a second\nBN and does not say\nwhere: mlp_order",
        va="center",
        fontsize=9,
        color="#4b5563",
    )
    axis.set(xlim=(-1.3, 3.0), ylim=(-0.5, 6.5))
    axis.set_axis_off()
    return _save(figure, path)


def draw_gradients(path: Path) -> Path:
    """What T-HN does to an anchor v, its positive t and its hardest negative (figure 4), with sines where they belong.

    (a) the angles; (b) on v acts the tangent part of t - t_n, the radial part is normalised away; (c) delta_s = 0 with
    the two on either side of v: the forces are as strong as ever; (d) collapse: each force is met by its opposite.
    """
    plt = pyplot()
    figure, panels = plt.subplots(1, 4, figsize=(13.2, 3.9), layout="constrained")
    apart = _unit(90), _unit(62), _unit(128)
    _draw_angles(panels[0], *apart)
    _draw_tangent(panels[1], *apart)
    _draw_forces(panels[2], _unit(90), _unit(60), _unit(120))
    _draw_forces(panels[3], _unit(90), _unit(62), _unit(65))
    titles = ("(a) scores are cosines\nof the two angles",
              "(b) on $v$: the tangent part of $t-\\hat{t}$,\nlarge unless $\\hat{t}=t$",
              "(c) $\\Delta s=0$, apart: both are turned,\nby $\\sin\\beta$, the same way round",
              "(d) collapse, $\\hat{t}\\to t$: opposite\nforces, nothing is left")  # fmt: skip
    for axis, title in zip(panels, titles):
        axis.set_title(title, fontsize=11)
    return _save(figure, path)


def _draw_angles(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    for vector, name, colour in ((v, "$v$", IMAGE), (t, "$t$", POSITIVE), (n, "$\\hat{t}$", NEGATIVE)):
        _ray(axis, vector, name, colour)
    for end, radius, name in ((t, 0.42, r"$\beta(v,t)$"), (n, 0.56, r"$\beta(v,\hat{t})$")):
        angles = np.linspace(_angle(v), _angle(end), 30)
        axis.plot(radius * np.cos(angles), radius * np.sin(angles), color=INK, linewidth=1.1)
        middle = (radius + 0.1) * np.array([np.cos(angles[15]), np.sin(angles[15])])
        side = "left" if end is t else "right"
        axis.text(*middle, name, ha=side, va="center", fontsize=9, color=INK)


def _draw_tangent(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    for vector, name, colour in ((v, "$v$", IMAGE), (t, "$t$", POSITIVE), (n, "$\\hat{t}$", NEGATIVE)):
        _ray(axis, vector, name, colour, faint=vector is not v)
    force = t - n
    radial = (force @ v) * v
    tangent = force - radial
    axis.plot(*zip(n, t), color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axis.plot(*zip(v + tangent, v + force), color=FAINT, linewidth=1, linestyle=(0, (2, 2)))
    _force(axis, v, radial, FAINT)
    _force(axis, v, force, INK)
    _force(axis, v, tangent, "#15803d")
    axis.annotate("$t-\\hat{t}$", v + force, (4, 2), textcoords="offset points", fontsize=11, color=INK, va="bottom")
    axis.annotate("tangent", v + tangent, (2, -4), textcoords="offset points", fontsize=9, color="#15803d", va="top")


def _draw_forces(axis: Any, v: Vector, t: Vector, n: Vector) -> None:
    _circle(axis)
    near = abs(_angle(t) - _angle(n)) < 0.1
    _ray(axis, v, "$v$", IMAGE)
    _ray(axis, t, "" if near else "$t$", POSITIVE)
    _ray(axis, n, "" if near else "$\\hat{t}$", NEGATIVE)
    if near:
        axis.annotate("$t$, $\\hat{t}$", 0.5 * (t + n), (14, 2), textcoords="offset points", fontsize=13, color=INK)
    for place, pull, colour in ((t, v, POSITIVE), (n, -v, NEGATIVE)):
        _force(axis, place, pull - (pull @ place) * place, colour)


def _circle(axis: Any) -> None:
    angles = np.linspace(np.radians(15), np.radians(165), 100)
    axis.plot(np.cos(angles), np.sin(angles), color=FAINT, linewidth=1.4)
    axis.plot(0, 0, "o", color=INK, markersize=3)
    axis.set(xlim=(-1.15, 1.15), ylim=(-0.08, 1.62), aspect="equal")
    axis.set_axis_off()


def _ray(axis: Any, vector: Vector, name: str, colour: str, faint: bool = False) -> None:
    _arrow(axis, (0, 0), tuple(vector), colour, alpha=0.45 if faint else 1.0)
    axis.text(*(1.11 * vector), name, color=colour, fontsize=14, ha="center", va="center")


def _force(axis: Any, start: Vector, vector: Vector, colour: str) -> None:
    if np.linalg.norm(vector) > 1e-6:
        _arrow(axis, tuple(start), tuple(start + vector), colour, width=2.4)


def _unit(degrees: float) -> Vector:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def _angle(vector: Vector) -> float:
    return float(np.arctan2(vector[1], vector[0]))


def _box(axis: Any, height: float, words: str, kind: str) -> None:
    axis.text(0, height, words, ha="center", va="center", fontsize=11, color=INK, bbox={
        "boxstyle": "round,pad=0.45", "facecolor": FILL[kind], "edgecolor": INK, "linewidth": 1.2})  # fmt: skip


def _sum(axis: Any, height: float) -> None:
    axis.text(0, height, "+", ha="center", va="center", fontsize=12, color=INK, bbox={
        "boxstyle": "circle,pad=0.18", "facecolor": "white", "edgecolor": INK, "linewidth": 1.2})  # fmt: skip


def _arrow(
    axis: Any, start: Sequence[float], end: Sequence[float], colour: str = INK, width: float = 1.6, alpha: float = 1.0
) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": width, "alpha": alpha,
                                              "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13})  # fmt: skip


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
    return path
