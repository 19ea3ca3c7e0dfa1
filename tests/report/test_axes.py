import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selhn.report.axes import Axis, fit_axis, linear_ticks, log_ticks, written

numbers = st.floats(1e-6, 1e6)


def test_places():
    axis = Axis(0, 10, 100, 0)
    assert [axis(value) for value in (0, 5, 10)] == [100, 50, 0]
    logarithmic = Axis(0.01, 1, 0, 100, is_log=True)
    assert [round(logarithmic(value)) for value in (0.01, 0.1, 1)] == [0, 50, 100]


@given(st.lists(numbers, min_size=1, max_size=8), st.booleans())
def test_every_value_is_on_the_axis_with_round_numbers_beside_it(values, is_log):
    axis = fit_axis(values, 0, 100, is_log=is_log)
    assert all(-1e-6 <= axis(value) <= 100 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 7
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in axis.ticks)
    if not is_log:
        assert axis.low == 0, "a linear axis begins at zero"


def test_no_logarithm_of_zero():
    assert not fit_axis([0.0, 1.0], 0, 100, is_log=True).is_log
    assert not fit_axis([-1.0, 1.0], 0, 100, is_log=True).is_log
    assert fit_axis([0.1, 1.0], 0, 100, is_log=True).is_log


def test_values_below_zero_all_equal_or_missing():
    assert fit_axis([-2.0, 1.0], 0, 100).low < -2
    assert fit_axis([0.0], 0, 100).ticks[-1] == 1
    assert fit_axis([], 0, 100, full=100).high == 100
    assert fit_axis([30.0], 0, 100, full=100).high == 100


def test_ticks():
    assert linear_ticks(0, 0.31) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert linear_ticks(0, 624) == [0, 200, 400, 600]
    assert log_ticks(0.005, 0.2) == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2])
    assert log_ticks(0.001, 0.2) == pytest.approx([0.001, 0.01, 0.1])
    assert len(log_ticks(1e-12, 1e12)) <= 6


def test_numbers_beside_an_axis():
    assert [written(value) for value in (0, 0.1, 0.0001, 1000, 250_000, 1e-5, 2e7)] == [
        "0", "0.1", "0.0001", "1,000", "250,000", "1e-5", "2e7",
    ]  # fmt: skip
    assert written(math.fsum([0.1] * 3)) == "0.3"
