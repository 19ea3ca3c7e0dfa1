import pytest

from selhn.diagnose.figures import smooth, training_figure

pytest.importorskip("matplotlib")


def log(offset):
    rows = [{"step": s, "loss_per_anchor": 0.2 + offset, "delta_s": 0.01 + s / 1000} for s in range(1, 50)]
    return [*rows, {"step": 25, "dev": {"rsum": 30.0}}, {"step": 49, "dev": {"rsum": 60.0 + offset}}]


def test_a_picture_is_written(tmp_path):
    path = training_figure({"T-HN": [log(0.0), log(0.01)], "SelHN": [log(-0.05)]}, tmp_path / "figure.png")
    assert path.stat().st_size > 10_000


def test_smooth():
    assert smooth([]) == []
    assert smooth([2.0, 2.0]) == [2.0, 2.0]
    assert smooth([0.0, 1.0], keep=0.5) == [0.0, 0.5]
