import numpy as np
import pytest

from selhn.reproduce import paper_figures as figures
from selhn.reproduce.paper_figures import EPSILONS, FIGURES, SYSTEMS
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import Wanted

pytest.importorskip("matplotlib")


def test_every_figure_of_the_paper_is_there():
    assert list(FIGURES) == [f"fig{number}" for number in range(1, 10)]
    assert all(isinstance(run, Wanted) for figure in FIGURES.values() for run in figure.runs)


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if figure.runs and name != "fig8"])
def test_a_figure_is_drawn_from_logs(name, written_runs, tmp_path):
    runs = written_runs(FIGURES[name].runs, seeds=(0, 1))
    assert FIGURES[name].draw(runs, tmp_path / "figure.png").stat().st_size > 20_000


def test_a_run_that_could_not_be_made_leaves_the_rest(written_runs, tmp_path):
    runs = written_runs(FIGURES["fig7"].runs[:1])
    assert FIGURES["fig7"].draw(runs, tmp_path / "one.png").stat().st_size > 10_000


def test_speed_and_quality_of_every_system(written_runs, tmp_path, monkeypatch):
    runs, asked = written_runs(()), []
    of_one = written_results()

    def speed(self, members):
        asked.append(members)
        return 1000.0 * len(asked)

    monkeypatch.setattr(PaperRuns, "pairs_a_second", speed)
    monkeypatch.setattr(PaperRuns, "metrics", lambda self, members, folds=1: [of_one])
    assert FIGURES["fig8"].draw(runs, tmp_path / "speed.png").stat().st_size > 20_000
    assert len(asked) == len(SYSTEMS)


def written_results():
    import torch

    from selhn.eval import recall

    return recall(torch.eye(20), torch.arange(20))


def test_curves_count_in_epochs_and_bands_hold_the_deviation():
    rows = [{"step": step, "epoch": (step - 1) // 5, "x": float(step % 2)} for step in range(1, 201)]
    at, mean, deviation = figures._band([rows, rows], "x")
    assert at[0] == pytest.approx(0.2)
    assert at[-1] == 40
    assert abs(mean[-1] - 0.5) < 0.06
    assert abs(deviation[-1] - 0.5) < 0.02
    _, _, still = figures._band([[{**row, "x": 1.0} for row in rows]], "x")
    assert np.allclose(still, 0)


def test_epsilon_zero_is_hardest_negative_mining():
    assert EPSILONS["0"].recipe == "rvse_hn"
    assert [figures._power(value) for value in EPSILONS][:3] == ["0", "$10^{-4}$", "$10^{-3}$"]


def test_labels_of_close_points_are_written_to_the_outside():
    alone, left, right = figures.label_places([(10.0, 100.0), (1000.0, 300.0), (1100.0, 301.0)])
    assert alone["ha"] == "center"
    assert (left["ha"], right["ha"]) == ("right", "left")
    assert figures.label_places([(5.0, 3.0)]) == [alone]
    assert figures.label_places([]) == []
