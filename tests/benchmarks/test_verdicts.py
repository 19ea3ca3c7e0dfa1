import json

import pytest
from plain_loop import plain_run
from verdicts import Trained, report, runs


def test_there_are_enough_of_both_ends_and_none_twice():
    every = list(runs())
    assert len({run.name for run in every}) == len(every) > 40
    assert sum(not run.own for run in every) > 12
    assert {"shuffled", "zeros", "one caption", "noise"} <= {run.settings.get("fault") for run in every}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of the plain loop, as the benchmark leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    for loss in ("hn", "triplet"):
        (folder / f"{loss} 0").mkdir()
        rows = plain_run(loss, steps=500)
        (folder / f"{loss} 0" / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_report(folder):
    right = [Trained("hn", ("stalled",), {"loss": "hn"}), Trained("triplet", (), {"loss": "triplet"})]
    text = report(right, [0], folder)
    assert "0 verdicts of 6 mislead" in text
    assert "failing: 1 runs, own kind 1, healthy 0" in text
    swapped = [Trained("hn", (), {"loss": "hn"}), Trained("triplet", ("chance",), {"loss": "triplet"})]
    assert "4 verdicts of 6 mislead" in report(swapped, [0], folder), "all, but for a loss alone that falls"


@pytest.mark.parametrize("fault", ["shuffled", "zeros", "one caption", "noise"])
def test_a_fault_leaves_dev_at_chance(fault):
    rows = plain_run("selhn", steps=140, fault=fault, pairs=100, held_out=200)
    assert max(row["dev"]["rsum"] for row in rows if "dev" in row) < 45
