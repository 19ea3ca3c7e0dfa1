"""The chart of the report and of the page of runs, drawn by a real browser (`apt-get install chromium`)."""

import json
import os
import shutil
from importlib.resources import files

import numpy as np
import pytest

from selhn.report.curves import Panel, panel_data, thin

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium, or CHROMIUM=PATH"
)
SCRIPT = files("selhn.report").joinpath("chart/chart.js").read_text("utf-8").replace("export ", "")
NAMES = "{Chart, axis, drawSample, fitAxis, linearTicks, logTicks, tickWords}"


@pytest.fixture(scope="module")
def browser_page():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        page.set_content(f"<figure></figure><script>{SCRIPT}; Object.assign(window, {NAMES})</script>")
        yield page
        chromium.close()


@pytest.fixture
def draw(browser_page):
    """Draw a panel; returns a function that reads the page with an expression of `figure` and `all(selector)`."""

    def drawn(panel, since=None):
        browser_page.evaluate(
            "(panel) => { const figure = document.querySelector('figure'); figure.replaceChildren();"
            "window.chart = new Chart(figure); chart.draw(panel); }",
            json.loads(json.dumps(panel_data(panel, since), allow_nan=False)),
        )
        return lambda words: browser_page.evaluate(
            "(() => { const figure = document.querySelector('figure');"
            "const all = (selector) => [...figure.querySelectorAll(selector)];"
            f"return {words}; }})()"
        )

    return drawn


def a_panel(*columns, **how):
    curves = tuple(
        thin(number, f"run {number}", (np.arange(1.0, len(column) + 1), np.array(column, dtype=float)))
        for number, column in enumerate(columns)
    )
    return Panel("Loss", "what it says", curves, until=float(max(map(len, columns))), **how)


def test_a_panel_is_inside_its_frame(draw):
    read = draw(a_panel([3, 2, 1], [1, 2, 3], level=(2.0, "level")), since=2)
    points = " ".join(read("all('polygon.band, polyline').map((one) => one.getAttribute('points'))")).split()
    assert all(
        0 <= float(x) <= 400 and 0 <= float(y) <= 240 for x, y in (point.split(",") for point in points)
    )
    assert read("all('.plot .line').length") == 2
    assert read("all('.level-name').map((one) => one.textContent)") == ["level 2"]
    assert float(read("all('.since')[0].getAttribute('width')")) == pytest.approx((400 - 14 - 46) / 3)


def test_it_is_described_and_has_a_legend(draw):
    read = draw(a_panel([3, 2, 1], [10, 20, 30]))
    assert read("all('.legend td').map((one) => one.textContent)") == ["1", "30"]
    assert read("all('.legend th').map((one) => one.textContent)") == ["run 0", "run 1"]
    label = "Loss over training steps. run 0: from 3 to 1; run 1: from 10 to 30."
    assert read("all('.plot')[0].getAttribute('aria-label')") == label


def test_gaps_and_single_points(draw):
    nan = float("nan")
    read = draw(a_panel([1, 2, nan, nan, 3, nan]))
    lines = read("all('polyline.line').map((one) => one.getAttribute('points').split(' ').length)")
    assert lines == [2, 1]
    assert "from 1 to 3" in read("all('.plot')[0].getAttribute('aria-label')")
    assert draw(a_panel([5]))("all('.plot .mark').length") == 1, "a point at the end"


def test_measurements_are_marked_one_by_one(draw):
    read = draw(a_panel([1, 2, 3], measured=True))
    assert read("[all('.plot .mark').length, all('.band').length]") == [3, 0]
    many = draw(a_panel(list(range(1, 100)), measured=True))
    assert many("all('.plot .mark').length") == 1


def test_curves_are_distinguished_without_colours(browser_page):
    looks = browser_page.evaluate(
        "Array.from({length: 12}, (_, run) => { const made = document.createElement('svg'); drawSample(made, run);"
        "return made.innerHTML.replaceAll(/ c\\d/g, ''); })"
    )
    assert len(set(looks)) == 12


def test_a_level_is_named_where_no_curve_ends(draw):
    height = "Number(all('.level-name')[0].getAttribute('y'))"
    above = draw(a_panel([3, 2.02], level=(2.0, "level")))(height)
    assert above > draw(a_panel([3, 1.98], level=(2.0, "level")))(height)


def test_values_are_read_by_pointer_and_keys(draw, browser_page):
    read = draw(a_panel([3, 2, 1], [10, 20]))
    caption, cells = (
        "all('.legend caption')[0].textContent",
        "all('.legend td').map((one) => one.textContent)",
    )
    assert read(caption) == "at the end"
    browser_page.focus(".plot")
    browser_page.keyboard.press("Home")
    assert read(caption) == "at step 1 (least to greatest)"
    assert read(cells) == ["3  (3 to 3)", "10  (10 to 10)"]
    browser_page.keyboard.press("End")
    assert read(cells) == ["1  (1 to 1)", "ended"]
    assert read("all('.plot')[0].classList.contains('reading')")
    read("all('.plot')[0].blur()")
    assert read(caption) == "at the end"
    browser_page.hover(".plot")
    assert read(caption).startswith("at step 1")
    browser_page.mouse.move(0, 0)


def test_places_on_an_axis(browser_page):
    assert browser_page.evaluate("[0, 5, 10, 11].map(axis(0, 10, 100, 0))") == [100, 50, 0, 0]
    assert browser_page.evaluate("[0.01, 0.1, 1].map(axis(0.01, 1, 0, 100, true)).map(Math.round)") == [
        0,
        50,
        100,
    ]


@pytest.mark.parametrize("is_log", [False, True])
def test_every_value_is_on_the_axis_with_round_numbers_beside_it(browser_page, is_log):
    values = (10 ** np.random.default_rng(0).uniform(-6, 6, (200, 3))).tolist()
    axes = browser_page.evaluate(
        "([all, isLog]) => all.map((values) => { const found = fitAxis(values, 0, 100, isLog);"
        "return { places: values.map(found), low: found.low, high: found.high, ticks: found.ticks }; })",
        [values, is_log],
    )
    for one in axes:
        assert all(-1e-6 <= place <= 100 + 1e-6 for place in one["places"])
        assert 2 <= len(one["ticks"]) <= 7
        assert all(one["low"] * 0.999 <= tick <= one["high"] * 1.001 for tick in one["ticks"])
        assert is_log or one["low"] == 0, "a linear axis begins at zero"


def test_ticks_and_the_words_beside_them(browser_page):
    def told(words):
        return browser_page.evaluate(words)

    assert told("linearTicks(0, 0.31)") == pytest.approx([0, 0.1, 0.2, 0.3])
    assert told("linearTicks(0, 624)") == [0, 200, 400, 600]
    assert told("logTicks(0.005, 0.2)") == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2])
    assert told("logTicks(0.001, 0.2)") == pytest.approx([0.001, 0.01, 0.1])
    assert told("logTicks(1e-12, 1e12).length") <= 6
    assert told("fitAxis([-2, 1], 0, 9).low") < -2
    assert told("fitAxis([0], 0, 9).ticks.at(-1)") == 1
    assert told("fitAxis([30], 0, 9, false, 100).high") == 100
    assert told("[0, 0.1, 0.0001, 1000, 250000, 1e-5, 2e7, 0.1 + 0.2].map(tickWords)") == [
        "0", "0.1", "0.0001", "1,000", "250,000", "1e-5", "2e7", "0.3",
    ]  # fmt: skip
