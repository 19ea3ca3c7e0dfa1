import pytest
from PIL import Image

from selhn.diagnose import Verdict, from_rows
from selhn.diagnose.plots import pyplot, save_figure, training_figure, verdict_figure

pytest.importorskip("matplotlib")


def log(offset):
    rows = [{"step": s, "loss_per_anchor": 0.2 + offset, "delta_s": 0.01 + s / 1000} for s in range(1, 50)]
    return [*rows, {"step": 25, "dev": {"rsum": 30.0}}, {"step": 49, "dev": {"rsum": 60.0 + offset}}]


def test_a_picture_is_written(tmp_path):
    path = training_figure({"T-HN": [log(0.0), log(0.01)], "SelHN": [log(-0.05)]}, tmp_path / "figure.png")
    assert path.stat().st_size > 10_000


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


def test_what_is_drawn_is_what_the_log_says(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("selhn.diagnose.plots.save_figure", lambda figure, path: drawn.append(figure) or path)
    rows = [{"epoch": e, "loss": 0.2 + 1 / (e + 1), "delta_s": 0.004} for e in range(20)]
    verdict_figure(
        from_rows(rows), Verdict("stalled", 3, "it sits", (), "", "row"), tmp_path / "x", 0.2, epsilon=0.05
    )
    left, right = drawn[0].axes
    assert drawn[0].get_suptitle() == "stalled since row 3"
    assert left.get_xlabel() == "row"
    assert left.lines[0].get_xdata()[-1] == 20
    assert left.lines[1].get_ydata().tolist() == left.lines[0].get_ydata().tolist(), (
        "few rows are drawn as they are"
    )
    assert left.lines[2].get_ydata()[0] == 0.2
    assert [text.get_text() for text in right.texts] == ["epsilon 0.05"]
    pyplot().close(drawn[0])


def test_a_long_log_is_drawn_with_fewer_points(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("selhn.diagnose.plots.save_figure", lambda figure, path: drawn.append(figure) or path)
    monkeypatch.setattr("selhn.diagnose.plots.MANY_ROWS", 60)
    rows = [{"step": step, "loss": 1 / (step + 1)} for step in range(600)]
    verdict_figure(from_rows(rows), Verdict("stalled", 300, "it sits", (), ""), tmp_path / "x")
    assert [len(line.get_xdata()) for line in drawn[0].axes[0].lines] == [60, 60]
    pyplot().close(drawn[0])


def test_a_figure_does_not_go_through_a_link(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "figure.png").symlink_to(tmp_path / "mine.txt")
    figure, _ = pyplot().subplots()
    assert save_figure(figure, tmp_path / "figure.png") == tmp_path / "figure.png"
    assert not (tmp_path / "figure.png").is_symlink()
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_figure_without_an_extension_says_where_it_is(tmp_path):
    figure, _ = pyplot().subplots()
    written = save_figure(figure, tmp_path / "figure")
    with Image.open(written) as image:
        assert image.format == "PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"] == [written.name]
