import json
import math
import re

import pytest
from run_cases import metrics

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.report.page import page
from selhn.report.records import as_typed, read_runs


def test_what_a_folder_says(write_run):
    first, second = read_runs([write_run("a", "loss=hn", level=20), write_run("b", "loss.epsilon=0.03")])
    assert (first.name, second.name) == ("a", "b")
    assert (first.found.epsilon, second.found.epsilon, first.found.plateau) == (0.01, 0.03, 0.2)
    assert first.settings["loss"] == "hn"
    assert second.settings["loss_settings.epsilon"] == "0.03"
    assert first.environment["command"] == '["selhn", "train"]'
    assert first.test.i2t[1] == 20
    assert first.dev.i2t[1] == 24, "the best epoch of the log"
    assert first.best_epoch == 4
    assert first.rsum == first.test.rsum == 240


def test_an_unfinished_run_has_what_it_has(record):
    run = record(finished=False)
    assert run.test is None
    assert run.rsum == run.dev.rsum
    early = record("early", finished=False, log=[{"step": 1, "epoch": 0, "loss_per_anchor": 0.3}])
    assert (early.dev, early.best_epoch, early.rsum) == (None, None, -1)
    assert early.found.log.steps.tolist() == [1]


def test_a_run_that_was_started_from_objects(write_run):
    folder = write_run("own", configured=False)
    (folder / "identity.json").write_text(json.dumps({"model": "Mine", "loss": "TripletSelHN()"}))
    (run,) = read_runs([folder])
    assert run.config is None
    assert run.settings == {"model": "Mine", "loss": "TripletSelHN()"}


def test_settings_as_they_are_typed():
    assert as_typed({"model": "rvse", "train": {"lr": 5e-4, "decay_at": [1, 2]}, "empty": {}}) == {
        "model": "rvse",
        "train.lr": "0.0005",
        "train.decay_at": "[1, 2]",
    }


def test_folders_that_hold_no_run_are_refused(write_run, tmp_path):
    with pytest.raises(NotFound, match="nowhere"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(NotFound, match="holds no run"):
        read_runs([tmp_path])
    with pytest.raises(SelhnError, match="empty"):
        read_runs([write_run("empty", log=[])])
    run = write_run("twice")
    with pytest.raises(SelhnError, match="twice"):
        read_runs([run, run])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results.json", "{"),
        ("results.json", "[]"),
        ("results.json", '{"test": {"i2t": {"R@1": 1}}}'),
        ("results.json", '{"test": 3}'),
        ("env.json", "x"),
        ("config.yaml", "epochs: ["),
        ("config.yaml", "colour: red"),
        ("log.jsonl", '{"step": 1\n{"step": 2}\n'),
        ("log.jsonl", '{"step": 1, "loss": 1, "dev": {"i2t": 3}}\n'),
        ("log.jsonl", json.dumps({"step": 1, "loss": 1, "epoch": "last", "dev": metrics(10.0)}) + "\n"),
        ("log.jsonl", json.dumps({"step": 1, "loss": 1, "epoch": math.inf, "dev": metrics(10.0)}) + "\n"),
    ],
)
def test_a_damaged_file_is_named(write_run, file, content):
    folder = write_run("broken")
    (folder / file).write_text(content)
    with pytest.raises(Damaged, match=re.escape(str(folder / file))):
        read_runs([folder])


@pytest.mark.parametrize(
    "row", [{"step": 0, "loss": 1.0, "grad_image": 0.5}, {"step": 1, "loss": 1.0, "dev": 3.0}]
)
def test_odd_logs_are_drawn(write_run, row):
    runs = read_runs([write_run("odd", log=[row])])
    assert "Loss" in page(runs, None)
