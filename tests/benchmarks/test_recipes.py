"""Recipes are screened on dev alone, continued where they were cut, and read test only when they are fixed."""

import subprocess
import sys
from argparse import Namespace

import pytest
import recipes
from one_run import Job, WarmRunner
from recipes import fixed_at, jobs_of, key, read_results, read_table, screen
from workers import Outcome

from selhn.training import loop as training_loop

pytestmark = pytest.mark.usefixtures("small_dev_and_test")
TABLE = recipes.HERE / "recipes.txt"
TINY = ("data.images=60", "model.dim=16", "model.word_dim=12", "epochs=2", "batch_size=64", "device=cpu")


def arguments(tmp_path, *settings, **changed):
    usual = {"data": "world", "dataset": "world", "table": TABLE, "only": ["rvse", "rvse-wide"], "seeds": [0],
             "settings": list(settings or TINY), "jobs": 1, "minutes": 9, "results": tmp_path / "runs.jsonl",
             "test": False, "scores": None}  # fmt: skip
    return Namespace(**{**usual, **changed})


def test_every_row_of_the_table_is_a_run(tmp_path):
    rows = read_table(TABLE)
    jobs = jobs_of(arguments(tmp_path, "device=cpu", only=["*"], seeds=[0, 1]), set())
    assert len(jobs) == 2 * len(rows)
    assert [job.seed for job in jobs] == [0] * len(rows) + [1] * len(rows)
    assert len({str(job.config()) for job in jobs}) == len(jobs), "no two rows are one recipe"
    assert jobs[0].name == "loss-rvse-meta_spn", "the longest first"


def test_a_run_has_its_dev_numbers_and_does_not_look_at_test(monkeypatch):
    seen, measure = [], training_loop.evaluate
    monkeypatch.setattr(
        training_loop, "evaluate", lambda model, split: (seen.append(split.name), measure(model, split))[1]
    )
    row = WarmRunner().run(Job("a", "world", "world", "rvse_strong", TINY, 0, test=False))
    assert set(seen) == {"dev"}
    assert len(row["dev"]) == 2
    assert float(row["dev_rsum"]) == max(row["dev"]) == row["dev"][row["best_epoch"] - 1]
    assert "rsum" not in row


class OneByOne:
    """Workers without processes, who report what they were handed."""

    given = []

    def __init__(self, work, number):
        pass

    def run(self, jobs, until):
        for job in jobs:
            OneByOne.given.append((job.name, job.seed))
            if job.settings[-1] == "fails":
                yield Outcome(job, error="no")
                continue
            row = {"dev": [1.0, 2.5], "dev_rsum": "2.50", "best_epoch": 2, "stalled": False, "seconds": "1.0"}
            row |= {"device": "CPU", "steps": "as written", "i2t_r1": "1.00", "rsum": "9.00"}
            yield Outcome(job, row)


def test_what_is_done_is_skipped_and_a_line_that_was_cut_is_done_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipes, "Workers", OneByOne)
    OneByOne.given = []
    assert screen(arguments(tmp_path)) == 0
    path = tmp_path / "runs.jsonl"
    assert [(line["name"], line["dev"]) for line in read_results(path)] == [
        ("rvse", [1.0, 2.5]),
        ("rvse-wide", [1.0, 2.5]),
    ]
    assert "test" not in path.read_text()
    path.write_bytes(path.read_bytes()[:-30])
    screen(arguments(tmp_path, seeds=[0, 1]))
    assert OneByOne.given == [("rvse", 0), ("rvse-wide", 0), ("rvse-wide", 0), ("rvse", 1), ("rvse-wide", 1)]
    assert len({key(line) for line in read_results(path)}) == len(path.read_text().splitlines()) == 4
    capsys.readouterr()
    screen(arguments(tmp_path, seeds=[0, 1]))
    assert "0 runs to do" in capsys.readouterr().out
    monkeypatch.setattr(recipes, "fixed_at", lambda table: "abc")
    screen(arguments(tmp_path, test=True, only=["rvse"]))
    assert read_results(path)[-1]["test"] == {"i2t_r1": 1.0, "rsum": 9.0}
    assert read_results(path)[-1]["commit"] == "abc"
    monkeypatch.setattr(
        recipes, "jobs_of", lambda *given: [Job("bad", "world", "world", "rvse_strong", ("fails",), 0)]
    )
    assert screen(arguments(tmp_path)) == 1
    assert "failed: bad seed 0: no" in capsys.readouterr().out


def test_test_is_read_for_committed_recipes_only(tmp_path, monkeypatch, capsys):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True
        )

    path = tmp_path / "table.txt"
    path.write_text("a rvse_strong\n")
    git("init", "-q")
    monkeypatch.delenv("SELHN_COMMIT", raising=False)
    monkeypatch.setattr(recipes, "commit", lambda: "abc1234")
    with pytest.raises(SystemExit, match="commit src and"):
        fixed_at(path)
    git("add", "table.txt")
    git("commit", "-q", "-m", "rows")
    assert fixed_at(path) == "abc1234"
    monkeypatch.setattr(recipes, "commit", lambda: "abc1234+")
    with pytest.raises(SystemExit, match="commit src and"):
        fixed_at(path)
    monkeypatch.setattr(sys, "argv", ["recipes.py", "world", "--test", "-s", "epochs=1"])
    with pytest.raises(SystemExit) as refused:
        recipes.main()
    assert refused.value.code == 2
    assert "write the settings into the table" in capsys.readouterr().err
