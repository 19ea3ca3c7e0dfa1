"""The comparison of losses: rows as data, resumed without a run twice, averages from kept scores."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compare import COLUMNS, Results, average, scores_file
from experiments import SETS, Experiment
from one_run import Job, WarmRunner, centred

from selhn.data import load_data
from selhn.eval import ensemble, recall

pytestmark = pytest.mark.usefixtures("small_dev_and_test")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare.py"
TINY = ("data.images=100", "model.dim=16", "model.word_dim=12", "epochs=1", "batch_size=64", "device=cpu")


def compare(results, *arguments):
    command = [
        sys.executable,
        SCRIPT,
        "world",
        "--dataset",
        "world",
        "--results",
        results,
        *arguments,
        "-s",
        *TINY,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def rows_of(results):
    with (results / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # three processes that start workers of their own
def test_two_workers_then_resumed(tmp_path):
    wanted = ["--models", "vse_fc", "--losses", "selhn", "earned", "meta_model", "--jobs", "2"]
    out = compare(tmp_path, *wanted, "--seeds", "0", "--logs", tmp_path / "logs")
    assert "skipped vse_fc_meta_model: unknown loss 'meta_model'" in out
    first = rows_of(tmp_path)
    assert list(first[0]) == COLUMNS
    assert [(row["name"], row["seed"]) for row in first] == [("vse_fc_earned", "0"), ("vse_fc_selhn", "0")]
    assert first[0]["settings"] == " ".join(["loss=earned", *TINY])
    assert all(0 < float(row["rsum"]) <= 600 and row["device"] == "CPU" for row in first)
    (log_of_earned,) = (tmp_path / "logs").glob("vse_fc_earned-seed0-*.csv")
    with log_of_earned.open(newline="") as file:
        log = list(csv.DictReader(file))
    assert [row["step"] for row in log if row["delta_s"]] == [str(step) for step in range(1, 500 // 64 + 1)]
    assert log[-1]["dev_rsum"] == first[0]["dev_rsum"]
    out = compare(tmp_path, *wanted, "--seeds", "0", "1")
    assert "seed 1: RSUM" in out
    assert "seed 0: RSUM" not in out, "what is in the CSV was trained again"
    again = rows_of(tmp_path)
    assert [(row["name"], row["seed"]) for row in again] == [
        (name, seed) for name in ("vse_fc_earned", "vse_fc_selhn") for seed in "01"
    ]
    assert [again[0], again[2]] == first
    assert "±" in (tmp_path / "table.md").read_text()
    out = compare(tmp_path, *wanted, "--seeds", "2", "--minutes", "0")
    assert "2 runs were not begun" in out
    assert rows_of(tmp_path) == again


def test_ensembles_average_the_scores_of_their_members(tmp_path):
    members = [
        Experiment("one", "vse_fc_selhn", keep_scores=True),
        Experiment("two", "rvse_selhn", keep_scores=True),
    ]
    results, runner = Results(tmp_path), WarmRunner()
    together = Experiment("both", "", TINY, members=("one", "two"))
    for one in members:
        scores = scores_file(tmp_path, one.name, 0, TINY)
        results.add(runner.run(Job(one.name, "world", "world", one.recipe, TINY, 0, scores=scores)))
    average([*members, together], "world", results)
    kept = [torch.load(scores_file(tmp_path, name, 0, TINY), weights_only=True) for name in ("one", "two")]
    for name, part in zip(("one", "two"), kept):
        row = next(row for row in rows_of(tmp_path) if row["name"] == name)
        assert row["rsum"] == f"{recall(part['scores'], part['image_of_text']).rsum:.2f}"
    both = next(row for row in rows_of(tmp_path) if row["name"] == "both")
    averaged = recall(ensemble(*(part["scores"] for part in kept)), kept[0]["image_of_text"])
    assert both["rsum"] == f"{averaged.rsum:.2f}"


def test_a_warm_run_is_a_run():
    def row(runner, seed, *settings):
        got = runner.run(Job("run", "world", "world", "rvse_selhn", (*TINY, *settings), seed))
        return {name: value for name, value in got.items() if name != "seconds"}

    runner = WarmRunner()
    row(runner, 1)
    assert row(runner, 0) == row(WarmRunner(), 0)
    assert len(runner.data) == len(runner.tokenizers) == 1
    with_mean, without = row(runner, 0), row(runner, 0, "centred=true")
    assert {name for name in with_mean if with_mean[name] != without[name]} > {"settings"}, (
        "and other results"
    )


def test_centred_features():
    data = load_data("world", images=100)
    without = centred(data, torch.device("cpu"))
    rows = torch.arange(100)
    before, mask = data.train.features.gather(rows)
    after, _ = without.train.features.gather(rows)
    assert after[mask].mean(0).abs().max() < 1e-4 < before[mask].mean(0).abs().max()
    mean = before[mask].mean(0)
    rows = rows[: data.dev.num_images]
    there, dev_mask = data.dev.features.gather(rows)
    torch.testing.assert_close(
        without.dev.features.gather(rows)[0][dev_mask], (there - mean)[dev_mask], rtol=1e-4, atol=1e-4
    )


def test_every_set_names_known_recipes_once():
    for name, make in SETS.items():
        names = [one.name for one in make()]
        assert names, name
        assert len(set(names)) == len(names), name
        runs = {one.name for one in make() if not one.members}
        for one in make():
            assert set(one.members) <= runs
            if not one.members:
                assert Job(one.name, "f8k", "data", one.recipe, (), 0).config().train.epochs > 1
