import math
import random
from dataclasses import replace

import numpy as np
import pytest
from drawn_logs import anchor_loss, recalls
from drawn_verdicts import KINDS, column_of, common, drawn, has_enough, learns, report, stalls

from selhn.diagnose import from_rows
from selhn.losses import create_loss


def test_a_seed_decides_the_logs():
    def numbers(seed):
        return [rows for _, rows in drawn("T-HN stalls", seed, 3)]

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)


def test_there_are_enough_kinds_of_both_ends():
    failing = [kind for kind in KINDS.values() if kind.own]
    assert len(failing) > 30
    assert len(KINDS) - len(failing) > 20


@pytest.mark.parametrize("loss", ["hn", "selhn", "triplet", "infonce", "tal"])
def test_equal_scores_have_the_plateau_of_the_loss(loss):
    run = replace(common(random.Random(0)), batch=64)
    settings = {"margin": 0.2, "temperature": 0.05} if loss == "tal" else {}
    plateau = create_loss(loss, **settings).plateau(64)
    assert anchor_loss(run, np.zeros(64), 0.0, loss) == pytest.approx(plateau, rel=0.01)


def test_recalls_are_those_expected():
    run = replace(common(random.Random(0)), images=1000, texts=5)
    draws = random.Random(0)

    def mean(expected):
        return sum(recalls(run, expected, draws) for _ in range(50)) / 50

    assert mean(None) == pytest.approx(3.19, abs=0.3)
    assert mean(300.0) == pytest.approx(300, abs=3)


def test_a_log_that_learns_and_one_that_stalls():
    chance = random.Random(0)
    for shape, separated in ((learns, True), (stalls, False)):
        run = shape(common(chance), chance)
        rows = next(drawn("learns" if separated else "T-HN stalls", 0, 1))[1]
        last = [row for row in rows if "delta_s" in row][-1]
        assert (last["delta_s"] > 0.03) == separated
        assert math.isfinite(run.spread(0.5))


def test_what_counts_as_right():
    stalled = KINDS["T-HN stalls"]
    assert [column_of(stalled, kind) for kind in ("stalled", "healthy", "unclear", "diverging")] == [
        "own", "healthy", "unclear", "alarmed"]  # fmt: skip
    assert column_of(KINDS["learns"], "overfitting") == "alarmed"
    _, rows = next(drawn("learns", 0, 1))
    assert has_enough(from_rows(rows))
    assert not has_enough(from_rows([row for row in rows if "dev" not in row]))


def test_a_report_names_every_kind(monkeypatch):
    monkeypatch.setattr("drawn_verdicts.KINDS", {name: KINDS[name] for name in ("learns", "T-HN stalls")})
    text = report([0], each=2)
    assert "4 drawn logs of 2 kinds" in text
    assert "failing: 2 logs, own kind 2, healthy 0" in text
    assert "learning: 2 logs, own kind 0, healthy 2, alarmed 0" in text
