import json

import numpy as np
import pytest
from run_cases import rows

from selhn.report.curves import MOST_POINTS, Panel, gradient_names, panel_data, panels, thin
from selhn.report.records import read_runs


def test_few_points_and_every_spike():
    steps, values = np.arange(1.0, 10_001), np.sin(np.arange(10_000) / 500)
    values[1234], values[8765] = 50.0, -50.0
    curve = thin(0, "run", (steps, values))
    assert len(curve.steps) == MOST_POINTS
    assert (curve.high.max(), curve.low.min()) == (50.0, -50.0)
    assert abs(curve.steps[curve.high.argmax()] - 1235) < 10_000 / MOST_POINTS
    assert curve.steps[-1] == 10_000
    assert np.all(np.diff(curve.steps) > 0)


def test_a_short_log_is_drawn_as_it_is():
    curve = thin(0, "run", (np.array([1.0, 2, 3]), np.array([3.0, 1, 2])))
    assert curve.low.tolist() == curve.high.tolist() == curve.line.tolist() == [3, 1, 2]
    assert len(thin(0, "run", (np.empty(0), np.empty(0))).steps) == 0


def test_what_is_no_number_leaves_a_gap():
    values = np.ones(1000)
    values[400:600] = np.nan
    values[700] = np.inf
    curve = thin(0, "run", (np.arange(1000.0), values))
    assert curve.lost == 201
    gone = np.isnan(curve.line)
    assert 0.18 < gone.mean() < 0.21
    assert np.allclose(curve.line[~gone], 1)


def test_a_running_mean_is_not_late():
    ramp = np.arange(1000.0)
    curve = thin(0, "run", (ramp, ramp))
    assert np.allclose(curve.line[5:-5], curve.steps[5:-5])
    assert thin(0, "run", (ramp[:200], ramp[:200])).line[:3].tolist() == [1, 1.5, 2], (
        "fewer neighbours at the ends"
    )
    noisy = np.random.default_rng(0).normal(size=1000)
    assert thin(0, "run", (ramp, noisy)).line.std() < 0.3


def test_what_comes_after_a_spike_is_drawn_as_it_was():
    values = np.full(10_000, 0.1)
    values[5_000] = 1e18
    curve = thin(0, "run", (np.arange(10_000.0), values))
    assert curve.high.max() == 1e18
    assert np.allclose(curve.line[curve.steps > 5_200], 0.1)


def test_the_panels_of_two_runs(write_run):
    runs = read_runs([write_run("hn", "loss=hn"), write_run("selhn", log=list(rows(20)))])
    found = panels(runs)
    assert [panel.title for panel in found] == [
        "Loss per anchor", "delta_s", "Separated anchors", "Gradient norm, image", "Gradient norm, text", "RSUM on dev",
    ]  # fmt: skip
    assert found[0].level == (0.2, "all scores equal")
    assert found[1].level == (0.01, "epsilon")
    assert found[2].curves[0].line[-1] == pytest.approx(100)
    assert all([curve.name for curve in panel.curves] == ["hn", "selhn"] for panel in found)
    assert {panel.until for panel in found} == {40}
    assert found[-1].curves[1].steps.tolist() == [10, 20]
    assert not found[0].is_log
    assert found[1].is_log
    zero = [{**row, "delta_s": 0.0} for row in rows(20)]
    assert not panels(read_runs([write_run("zero", log=zero)]))[1].is_log, "zero has no logarithm"
    assert not panels(read_runs([write_run("no_epsilon", "loss.epsilon=0")]))[1].is_log


def test_levels_only_where_all_runs_share_them(write_run):
    runs = read_runs([write_run("triplet", "loss=triplet"), write_run("selhn", "loss.epsilon=0.05")])
    loss, delta_s, *_ = panels(runs)
    assert loss.level is None
    assert delta_s.level is None
    assert loss.is_log, "a sum over 99 negatives beside a loss of one"


def test_a_log_without_gradients_scores_or_evaluations(record):
    run = record(log=[{"step": step, "loss": 1 / step} for step in range(1, 20)])
    assert [panel.title for panel in panels([run])] == ["Loss"]
    named = record("other", log=[{"step": 1, "loss": 1.0, "grad_a": 1.0, "grad_b": 1.0, "grad_c": 1.0}])
    assert gradient_names([named]) == ["grad_a", "grad_b"]


def test_numbers_for_the_script():
    curve = thin(0, "run", (np.arange(1.0, 4), np.array([0.123456789, np.nan, 2])))
    data = panel_data(Panel("Loss", "what it says", (curve,), until=3.0), since=2)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["curves"][0]["line"] == [0.12346, None, 2]
    assert data["curves"][0]["steps"] == [1, 2, 3]
    assert (data["until"], data["since"]) == (3, 2)
    assert [curve.told(step, " %") for step in (1, 2, 2.9)] == ["0.1235 %", "–", "2 %"]
