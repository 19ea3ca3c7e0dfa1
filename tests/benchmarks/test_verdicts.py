import json

import pytest
import verdicts
from plain_loop import plain_run
from verdicts import Job, alarm_delay, foreign, jobs, misjudged, report, truths

from selhn.diagnose import from_rows


def test_there_are_enough_of_every_kind_and_none_twice():
    every = list(jobs([2, 3]))
    assert len({job.name for job in every}) == len(every) > 55
    assert {job.loss for job in every} == set(verdicts.LOSSES)
    assert {job.setup for job in every} >= {*verdicts.MODELS, "plain"}


def test_truth_is_what_a_run_reached_against_the_best_loss_of_its_set_up():
    best, slow, failed = Job("m", "a", 0), Job("m", "b", 0), Job("m", "c", 0)
    wrong_step, elsewhere = Job("m", "a", 0, ("lr=10.0",)), Job("n", "c", 0)
    found = {
        best: [10, 400],
        slow: [200, 340],
        failed: [300, 200],
        wrong_step: [90, 80],
        elsewhere: [100, 100],
    }
    truth = truths(found)
    assert truth == {
        best: "healthy",
        slow: "healthy",
        failed: "failed",
        wrong_step: "failed",
        elsewhere: "healthy",
    }
    assert truths(found, 0.9)[slow] == "failed"
    assert truths({**found, wrong_step: []})[wrong_step] == "failed", "it ended before the first evaluation"
    assert misjudged({best: "healthy", slow: "healthy", failed: "unclear", elsewhere: "stalled"}, truth) == 2
    ends = {"a": 250, "b": 295}
    little = {Job("little_m", loss, 0): [10, *[300] * 20, *[end] * 20] for loss, end in ends.items()}
    assert list(truths(little).values()) == ["overfit", "healthy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of the plain loop, as the benchmark leaves them."""
    runs = tmp_path_factory.mktemp("runs")
    for loss in ("hn", "triplet"):
        rows = plain_run(loss, steps=500)
        own = runs / Job("plain", loss, 0).name
        own.mkdir()
        (own / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return runs


def test_a_foreign_log_has_the_loss_alone(folder):
    own = folder / "plain-hn-seed0"
    log = verdicts.the_log(own)
    for path, told in foreign(log, own).values():
        read = verdicts.diagnose(path, **told)[1]
        assert set(read.columns) == {"loss"}
        assert not read.dev
    assert verdicts.diagnose(foreign(log, own)["sums"][0])[1].loss[-1] == pytest.approx(
        128 * log.loss[-2], rel=1e-2
    )


def test_the_report(folder, monkeypatch):
    found = {Job("plain", "hn", 0): [20, 30], Job("plain", "triplet", 0): [200, 500]}
    text = report(found, folder)
    assert "0 of 8 misjudged" in text
    assert "0.5: 0, 0.6: 0" in text
    assert "3 left open" in text, "a loss alone that falls is no proof"
    assert "between 0.5 and 0.85: none" in text
    assert "1 of" not in text
    swapped = dict(zip(found, reversed(found.values())))
    assert "5 of 8 misjudged" in report(swapped, folder), "all, but for what was left open"


def test_the_delay_of_the_alarm_counts_from_delta_s_and_not_from_the_alarm():
    def row(step):
        return {"step": step, "loss": 0.2, "delta_s": 0.002 if step > 100 else 0.05, "spread": 0.01}

    log = from_rows([row(step) for step in range(1, 601)])
    delay, rest = alarm_delay(log, 0.2)
    assert rest == 500
    assert 250 <= delay < 300
    assert alarm_delay(log, 0.5)[0] is None
