import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from selhn.report.chart import COLOURS, HEIGHT, WIDTH, described, draw_panel, mark, panel_data, sample
from selhn.report.curves import Panel, thin


def a_panel(*columns, **how):
    curves = tuple(
        thin(number, f"run {number}", (np.arange(1.0, len(column) + 1), np.array(column, dtype=float)))
        for number, column in enumerate(columns)
    )
    return Panel("Loss", "what it says", curves, until=float(max(map(len, columns))), **how)


def drawn(panel, since=None):
    return ElementTree.fromstring(draw_panel(0, panel, since))


def by_class(tree, name):
    return [one for one in tree.iter() if name in one.get("class", "").split()]


def test_a_panel_is_well_formed_and_inside_its_frame():
    tree = drawn(a_panel([3, 2, 1], [1, 2, 3], level=(2.0, "level")), since=2)
    for one in tree.iter():
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", one.get("points", "")):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
    assert len(by_class(tree, "line")) == 2 + 2, "a curve and a sample in the legend for each"
    assert [one.text for one in by_class(tree, "level-name")] == ["level 2"]
    (shade,) = by_class(tree, "since")
    assert float(shade.get("width")) == pytest.approx((WIDTH - 14 - 46) / 3, abs=0.1)


def test_it_is_complete_without_a_script():
    tree = drawn(a_panel([3, 2, 1], [10, 20, 30]))
    assert [cell.text for cell in tree.iter("td")] == ["1", "30"]
    assert [head.find("span").text for head in tree.iter("th")] == ["run 0", "run 1"]
    (svg,) = (one for one in tree.iter("svg") if one.get("role") == "img")
    assert svg.get("aria-label") == "Loss over training steps. run 0: from 3 to 1; run 1: from 10 to 30."


def test_gaps_and_single_points():
    holey = a_panel([1, 2, math.nan, math.nan, 3, math.nan])
    tree = drawn(holey)
    lines = [one.get("points") for one in by_class(tree, "line") if one.tag == "polyline"]
    assert [len(line.split()) for line in lines] == [2, 1]
    assert "3 values are no finite numbers" in "".join(tree.itertext())
    assert "from 1 to 3" in described(holey)
    alone = drawn(a_panel([5]))
    assert len(by_class(alone, "mark")) == 2, "a point at the end, and in the legend"


def test_measurements_are_marked_one_by_one():
    panel = replace(a_panel([1, 2, 3]), measured=True)
    assert len(by_class(drawn(panel), "mark")) == 3 + 1
    assert not by_class(drawn(panel), "band")
    many = replace(a_panel(list(range(1, 100))), measured=True)
    assert len(by_class(drawn(many), "mark")) == 1 + 1


def test_the_scale_is_said():
    assert "logarithmic" in draw_panel(0, a_panel([1, 10], is_log=True))
    assert "logarithmic" not in draw_panel(0, a_panel([0, 10], is_log=True)), "zero has no logarithm"


def test_runs_are_told_apart_without_colours():
    looks = set()
    for run in range(2 * COLOURS):
        words = sample(run)
        looks.add((re.search(r" (d\d)", words).group(1), mark(run, 0, 0).replace(f"c{run % COLOURS}", "")))
    assert len(looks) == 2 * COLOURS


def test_numbers_for_the_script():
    panel = a_panel([0.123456789, math.nan, 2])
    data = panel_data(panel)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    (curve,) = data["curves"]
    assert curve["line"] == [0.12346, None, 2]
    assert curve["steps"] == [1, 2, 3]
    assert curve["heights"][1] is None
    assert data["steps"][:2] == [0, 3]


def test_a_level_is_named_where_no_curve_ends():
    above = a_panel([3, 2.02], level=(2.0, "level"))
    below = a_panel([3, 1.98], level=(2.0, "level"))
    heights = [float(by_class(drawn(panel), "level-name")[0].get("y")) for panel in (above, below)]
    assert heights[0] > heights[1]
