"""A panel of curves as a picture in SVG, with its legend; complete without a script, which only adds a reading."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from selhn.diagnose.logs import Column
from selhn.report.axes import Axis, fit_axis, written
from selhn.report.curves import Curve, Panel
from selhn.report.markup import Html, element, together

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 36
COLOURS = 6
"""Colours of `page.css`; as many ways to dash a line and shapes of marks."""
MOST_MARKS = 40
ROOM = 16
"""Height of a line of words."""
SIZE = 4.0


def draw_panel(number: int, panel: Panel, since: int | None = None) -> Html:
    """A figure; what came after the step `since` is shaded."""
    across, up = _axes(panel)
    inside = [_grid(across, up, panel), _shade(across, since)]
    inside += [_curve(curve, across, up, panel.measured) for curve in panel.curves]
    inside.append(_level(up, panel))
    reading = [element("line", class_="cursor", x1=0, x2=0, y1=TOP, y2=HEIGHT - BOTTOM)]
    drawn = element("svg", *inside, *reading, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=described(panel))
    lost = sum(curve.lost for curve in panel.curves)
    notes = [f"{panel.words}{'; logarithmic' if up.is_log else ''}"]
    notes += [f"{lost:,} values are no finite numbers, and are not drawn"] if lost else []
    return element(
        "figure",
        element("figcaption", element("h3", panel.title), element("p", ". ".join(notes))),
        drawn,
        _legend(panel),
        class_="panel card",
        data_panel=number,
    )


def panel_data(panel: Panel) -> dict[str, Any]:
    """What the script needs to read a value under the pointer."""
    across, up = _axes(panel)
    return {
        "steps": [across.low, across.high, across.start, across.end],
        "unit": panel.unit,
        "single": panel.measured,
        "curves": [
            {
                "steps": curve.steps.astype(int).tolist(),
                **{name: _short(getattr(curve, name)) for name in ("line", "low", "high")},
                "heights": _short([up(value) if math.isfinite(value) else value for value in curve.line]),
            }
            for curve in panel.curves
        ],
    }


def described(panel: Panel) -> str:
    """The picture in words."""
    ends = []
    for curve in panel.curves:
        there = curve.line[np.isfinite(curve.line)]
        first, last = value_in_words(there[0], panel.unit), value_in_words(there[-1], panel.unit)
        ends.append(f"{curve.name}: from {first} to {last}")
    return f"{panel.title} over training steps. {'; '.join(ends)}."


def value_in_words(value: float, unit: str = "") -> str:
    """A value beside a legend."""
    return f"{value:.1f}{unit}" if unit or abs(value) >= 100 else f"{value:.4g}"


def mark(run: int, x: float, y: float, size: float = SIZE) -> Html:
    """The shape of a run, so that colours are not needed to tell runs apart."""
    shapes = (
        ((-1, 0), (0, -1), (1, 0), (0, 1)),
        ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
        ((0, -1), (1, 0.8), (-1, 0.8)),
        ((0, 1), (1, -0.8), (-1, -0.8)),
        ((-1, -0.35), (1, -0.35), (1, 0.35), (-1, 0.35)),
    )
    kind = f"mark c{run % COLOURS}"
    if run % COLOURS == 0:
        return element("circle", class_=kind, cx=f"{x:.1f}", cy=f"{y:.1f}", r=0.85 * size)
    corners = shapes[run % COLOURS - 1]
    return element(
        "polygon", class_=kind, points=" ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in corners)
    )


def sample(run: int) -> Html:
    """A short piece of a run's line, for legends."""
    line = element("line", class_=f"line c{run % COLOURS} {_dash(run)}", x1=1, x2=29, y1=7, y2=7)
    return element("svg", line, mark(run, 15, 7), class_="sample", viewBox="0 0 30 14", aria_hidden="true")


def _dash(run: int) -> str:
    # Past the last colour the colours begin again, with other dashes.
    return f"d{(run + run // COLOURS) % COLOURS}"


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    bounds = [float(v) for curve in panel.curves for v in (*curve.low, *curve.high) if math.isfinite(v)]
    bounds += [panel.level[0]] if panel.level is not None else []
    up = fit_axis(bounds, HEIGHT - BOTTOM, TOP, is_log=panel.is_log, full=panel.full)
    # Steps end where the log does: an axis that goes on looks as if training had stopped early.
    return Axis(0.0, panel.until, LEFT, WIDTH - RIGHT), up


def _grid(across: Axis, up: Axis, panel: Panel) -> Html:
    parts = []
    for value in up.ticks:
        y = f"{up(value):.1f}"
        parts.append(element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(element("text", written(value) + panel.unit, x=LEFT - 6, y=y, class_="tick up"))
    floor = HEIGHT - BOTTOM
    parts.append(element("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor))
    for value in across.ticks:
        x = f"{across(value):.1f}"
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=floor, y2=floor + 4))
        parts.append(element("text", written(value), x=x, y=floor + 16, class_="tick across"))
    parts.append(element("text", "step", x=WIDTH - RIGHT, y=HEIGHT - 4, class_="tick end"))
    return together(*parts)


def _shade(across: Axis, since: int | None) -> Html:
    if since is None:
        return Html()
    x = across(min(since, across.high))
    return element(
        "rect", class_="since", x=f"{x:.1f}", y=TOP, width=f"{across.end - x:.1f}", height=HEIGHT - TOP - BOTTOM
    )


def _level(up: Axis, panel: Panel) -> Html:
    if panel.level is None:
        return Html()
    value, name = panel.level
    y = up(value)
    ends = [up(curve.line[np.isfinite(curve.line)][-1]) for curve in panel.curves]
    # Above the line, unless that is the top of the picture, or a curve ends there and none below.
    met = [any(low < end <= high for end in ends) for low, high in ((y - ROOM, y), (y, y + ROOM))]
    below = y < TOP + ROOM or met == [True, False]
    return together(
        element("line", class_="level", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"),
        element(
            "text",
            f"{name} {value:.4g}",
            class_="tick level-name",
            x=WIDTH - RIGHT,
            y=f"{y + (13 if below else -5):.1f}",
        ),
    )


def _curve(curve: Curve, across: Axis, up: Axis, measured: bool) -> Html:
    kind = f"c{curve.run % COLOURS}"
    parts = []
    for piece in _pieces(curve.line):
        places = [f"{across(step):.1f}" for step in curve.steps[piece]]
        if not measured:
            edge = [f"{x},{up(value):.1f}" for x, value in zip(places, curve.low[piece])]
            edge += [f"{x},{up(value):.1f}" for x, value in zip(places, curve.high[piece])][::-1]
            parts.append(element("polygon", class_=f"band {kind}", points=" ".join(edge)))
        points = " ".join(f"{x},{up(value):.1f}" for x, value in zip(places, curve.line[piece]))
        parts.append(element("polyline", class_=f"line {kind} {_dash(curve.run)}", points=points))
    there = np.flatnonzero(np.isfinite(curve.line))
    marked = there if measured and len(there) <= MOST_MARKS else there[-1:]
    parts += [mark(curve.run, across(curve.steps[at]), up(curve.line[at])) for at in marked]
    return element("g", *parts)


def _pieces(line: Column) -> Iterator[slice]:
    """The stretches of a curve without a gap."""
    finite = np.concatenate([[False], np.isfinite(line), [False]])
    edges = np.flatnonzero(finite[1:] != finite[:-1])
    yield from (slice(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2]))


def _legend(panel: Panel) -> Html:
    rows = []
    for curve in panel.curves:
        last = curve.line[np.isfinite(curve.line)][-1]
        value = element("td", value_in_words(last, panel.unit))
        rows.append(element("tr", element("th", sample(curve.run), element("span", curve.name), scope="row"), value))
    head = element("caption", "at the end", class_="at")
    return element("table", head, *rows, class_="legend", aria_live="off")


def _short(column: Column | Sequence[float]) -> list[float | None]:
    """Five digits are more than can be seen, and a gap is null."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in column]
