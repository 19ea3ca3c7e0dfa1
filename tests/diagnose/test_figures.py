import pytest
from PIL import Image

from selhn.diagnose import Verdict, from_rows
from selhn.diagnose.figures import pyplot, save_figure, smooth, training_figure, verdict_figure

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


def test_a_verdict_is_drawn_with_what_the_log_has(tmp_path):
    verdict = Verdict("stalled", 20, "it sits", (), "another loss")
    widths = []
    for rows in ([{"step": s, "loss": 0.2} for s in range(1, 50)], log(0.0)):
        path = verdict_figure(from_rows(rows), verdict, tmp_path / "figure.png", plateau=0.2)
        with Image.open(path) as image:
            widths.append(image.width)
    assert widths[1] > 2.5 * widths[0], "loss alone, then delta_s and RSUM beside it"


def test_a_figure_is_saved_and_closed(tmp_path):
    plt = pyplot()
    figure, axis = plt.subplots()
    axis.plot([0, 1], [0, 1])
    assert save_figure(figure, tmp_path / "line.png").stat().st_size > 5_000
    assert not plt.fignum_exists(figure.number)
    assert not axis.spines["top"].get_visible()
