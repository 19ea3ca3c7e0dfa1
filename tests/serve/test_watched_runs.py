import json

import pytest

from selhn.base.errors import NotFound, SelhnError
from selhn.serve.watched_runs import MOST_ROWS, VerdictMessage, WatchedRuns


def row(step, **values):
    return json.dumps(
        {"step": step, "epoch": 0, "loss_per_anchor": 1 / step, "delta_s": 0.1, "separated": 0.5, **values}
    )


def dev(step, rsum):
    return json.dumps({"step": step, "epoch": 1, "dev": {"rsum": rsum}, "probe": {"delta_s": 1.0}})


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "runs" / "group" / "one" / "log.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{row(step)}\n" for step in (1, 2, 3)) + dev(3, 123.0) + "\n")
    return path


@pytest.fixture
def runs(log, tmp_path):
    return WatchedRuns(tmp_path / "runs")


def test_a_log_is_read_on_from_where_it_was(runs, log):
    first = runs.read("group/one")
    assert first.steps == [1, 2, 3]
    assert first.columns["loss"] == [1, 1 / 2, 1 / 3]
    assert first.columns["mined"] == [0.5] * 3
    assert first.evaluations == [{"step": 3, "epoch": 1, "rsum": 123.0}]
    assert first.after == log.stat().st_size
    assert not first.more
    with log.open("a") as file:
        file.write(f"{row(4)}\n{row(5)[:20]}")
        file.flush()
        second = runs.read("group/one", first.after)
        assert second.steps == [4], "a line that is half written waits"
        file.write(f"{row(5)[20:]}\n")
        file.flush()
    third = runs.read("group/one", second.after)
    assert third.steps == [5]
    assert runs.read("group/one", third.after).steps == []


def test_a_log_that_begins_again(runs, log):
    after = runs.read("group/one").after
    log.write_text(f"{row(1)}\n")
    again = runs.read("group/one", after)
    assert again.restarted
    assert again.steps == [1]


def test_lines_that_say_nothing_are_passed_over(runs, log):
    log.write_text("\n".join(["{", "[]", '{"step": "x"}', '{"loss": 1}', "\x00", row(7), '{"step": 8}', ""]))
    found = runs.read("group/one")
    assert found.steps == [7, 8]
    assert found.columns["loss"] == [1 / 7, None]


def test_numbers_that_json_cannot_say(runs, log):
    log.write_text('{"step": 1, "loss_per_anchor": NaN}\n{"step": 2, "loss": Infinity, "delta_s": 0.5}\n')
    found = runs.read("group/one")
    assert found.columns["loss"] == [None, None]
    json.dumps(found.model_dump(), allow_nan=False)


def test_a_long_log_comes_in_pieces_and_thinned(runs, log, monkeypatch):
    log.write_text("".join(f"{row(step)}\n" for step in range(1, 5001)))
    found = runs.read("group/one")
    assert len(found.steps) == MOST_ROWS
    assert found.steps[-1] == 5000
    assert found.columns["loss"][0] == pytest.approx(sum(1 / step for step in range(1, 6)) / 5)
    monkeypatch.setattr("selhn.serve.watched_runs.MOST_BYTES", 10_000)
    after, steps, more = 0, [], True
    while more:
        piece = runs.read("group/one", after)
        after, more = piece.after, piece.more
        steps += piece.steps
    assert steps == list(range(1, 5001))


def test_a_line_without_an_end_is_passed_over(runs, log, monkeypatch):
    monkeypatch.setattr("selhn.serve.watched_runs.MOST_BYTES", 1000)
    log.write_text("x" * 5000 + f"\n{row(1)}\n")
    after, steps, more = 0, [], True
    while more:
        piece = runs.read("group/one", after)
        assert piece.after > after
        after, more = piece.after, piece.more
        steps += piece.steps
    assert steps == [1]


def test_which_runs_there_are(runs, log, tmp_path):
    for name in ("two", ".hidden", "a/b/c/d/e/too_deep"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "log.jsonl").write_text("")
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "log.jsonl").write_text(f"{row(1)}\n")
    (tmp_path / "runs" / "linked").mkdir()
    (tmp_path / "runs" / "linked" / "log.jsonl").symlink_to(outside / "log.jsonl")
    assert sorted(run.name for run in runs.all()) == ["group/one", "two"]


@pytest.mark.parametrize(
    "name", ["../elsewhere", "/etc", "group", "", "group/one/../../../elsewhere", "a\0b", "none"]
)
def test_what_is_no_run_of_the_folder(runs, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "log.jsonl").write_text(f"{row(1)}\n")
    for ask in (runs.read, runs.verdict, runs.describe):
        with pytest.raises(NotFound):
            ask(name)


def test_a_run_in_a_few_words(runs, log):
    assert not runs.describe("group/one").finished
    (log.parent / "results.json").write_text(
        json.dumps({"dev": {}, "test": {"rsum": 311.5}, "best_epoch": 3})
    )
    found = runs.describe("group/one")
    assert found.finished
    assert found.test_rsum == 311.5
    (log.parent / "results.json").write_text("{")
    assert not runs.describe("group/one").finished, "it is being written"


def test_the_verdict_is_that_of_diagnose(runs, log):
    from selhn.diagnose import diagnose

    stuck = {"loss_per_anchor": 0.2, "delta_s": 0.001, "separated": 0.0, "spread": 0.001}
    log.write_text("".join(f"{row(step, **stuck)}\n" for step in range(1, 800)))
    said = runs.verdict("group/one")
    assert said.kind == "stalled"
    assert said == VerdictMessage(**diagnose(log.parent)[0].to_dict())
    log.write_text("")
    assert runs.verdict("group/one").why == "nothing has been logged yet"
    log.write_text('{"step": 1}\n')
    told = runs.verdict("group/one")
    assert told.kind == "unclear"
    assert str(log.parent) not in told.why


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(SelhnError, match="--runs"):
        WatchedRuns(tmp_path / "none")


@pytest.mark.parametrize("named", ["_run", "describe"])
def test_a_run_that_is_removed_while_they_are_listed(runs, log, monkeypatch, named):
    other = log.parents[1] / "two" / "log.jsonl"
    other.parent.mkdir()
    other.write_text(row(1) + "\n")
    real = getattr(runs, named)

    def removing(name):
        other.unlink(missing_ok=True)
        return real(name)

    monkeypatch.setattr(runs, named, removing)
    assert [run.name for run in runs.all()] == ["group/one"]
