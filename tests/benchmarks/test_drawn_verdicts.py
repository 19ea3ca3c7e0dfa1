import random
from dataclasses import replace

import numpy as np
import pytest
from drawn_logs import anchor_loss
from drawn_verdicts import KINDS, column_of, common, drawn, has_enough, report

from selhn.diagnose import from_rows
from selhn.losses import create_loss


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
