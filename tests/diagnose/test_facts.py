import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from selhn.diagnose import from_rows
from selhn.diagnose.facts import ends, told_gradients, told_numbers
from selhn.diagnose.logs import smoothed

ROWS = [{"step": s, "loss": 1.0, "spread": 0.1 / s, "grad_image": 1 / s, "grad_text": 1.0, "grad_idle": 0.0}
        for s in range(1, 31)]  # fmt: skip


def test_ends():
    assert ends(np.array([1.0, math.nan, 3.0])) == (1.0, 3.0)
    assert ends(np.arange(40.0)) == (1.5, 37.5)
    assert all(math.isnan(value) for value in ends(np.array([math.nan])))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=100))
def test_a_running_mean_stays_among_its_values(values):
    means = smoothed(np.array(values))
    assert len(means) == len(values)
    assert means.min() >= min(values) - 1e-9
    assert means.max() <= max(values) + 1e-9


def test_a_row_without_a_number_repeats_the_one_before():
    assert smoothed(np.array([])).tolist() == []
    assert smoothed(np.array([math.nan, 2.0, math.inf, 3.0])).tolist() == [2.0, 2.0, 2.0, 3.0]
    lost = np.array([math.nan, math.inf])
    assert smoothed(lost) is lost
    long = np.where(np.arange(40) == 30, math.inf, np.arange(40) % 2)
    assert smoothed(long)[[0, 1, 39]].tolist() == [0.0, 0.5, 0.5]


def test_the_gradient_that_changed_most_is_told():
    (told,) = told_gradients(from_rows(ROWS))
    assert told.startswith("gradient norm of image: from ")
    assert told_gradients(from_rows([{"loss": 1.0}])) == ()
    (whole,) = told_gradients(from_rows([{"loss": 1.0, "grad_norm": 0.5}]))
    assert whole.startswith("gradient norm: from ")
    far = [{"loss": 1.0, "grad_image": norm} for norm in (1e300, 1e-300)]
    assert told_gradients(from_rows(far)) == ("gradient norm of image: from 1e+300 to 1e-300",)


def test_what_a_log_has_is_told():
    dev = [
        {"step": 40, "rsum": 30.0, "probe": {"rank_texts": 8.0}},
        {"step": 50, "rsum": 60.0, "probe": {"rank_texts": 9.0}},
    ]
    told = "; ".join(told_numbers(from_rows([*ROWS, *dev])))
    for words in (
        "spread of the scores: from 0.061",
        "effective rank of the texts: from 8 to 9",
        "RSUM on dev: from 30 to 60",
    ):
        assert words in told
    assert not any("RSUM" in one for one in told_numbers(from_rows(ROWS)))
