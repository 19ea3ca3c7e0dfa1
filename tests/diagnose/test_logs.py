import json
import math

import numpy as np
import pytest
from event_files import HEADER, scalar_event

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.diagnose import from_rows, judge, read_foreign

ROWS = [{"step": 10 * i, "loss": 1 / i, "lr": 5e-4} for i in range(1, 6)]


def written(path, name, text):
    path = path / name
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    return path


FORMS = {
    "log.csv": "step,loss,lr\n" + "".join(f"{row['step']},{row['loss']!r},{row['lr']}\n" for row in ROWS),
    "log.tsv": "step\tloss\tlr\n" + "".join(f"{row['step']}\t{row['loss']!r}\t{row['lr']}\n" for row in ROWS),
    "excel.csv": "\ufeffstep;loss;lr\n"
    + "".join(f"{row['step']};{row['loss']!r};{row['lr']}\n" for row in ROWS),
    "log.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "cut.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS) + '{"step": 60, "lo',
    "log.json": json.dumps(ROWS, indent=1),
    "events.out.tfevents.17": HEADER + b"".join(scalar_event(**row) for row in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(tmp_path, name):
    log = read_foreign(written(tmp_path, name, FORMS[name]))
    assert log.steps.tolist() == [10, 20, 30, 40, 50]
    np.testing.assert_allclose(log.loss, [row["loss"] for row in ROWS], rtol=1e-6)
    assert log.clock == "step"
    assert set(log.columns) == {"loss", "lr"}


@pytest.mark.parametrize(
    "name", ["train_loss", "train/loss", "Loss", "loss/train", "Training Loss", "triplet_loss"]
)
def test_names_of_the_loss(name):
    log = from_rows([{name: 1.0, "val_loss": 2.0, "epoch": 1}])
    assert log.loss_name == name
    assert list(log.dev_loss) == [(100.0, 2.0)]
    assert log.clock == "row"


def test_a_log_of_ours_and_its_evaluations():
    rows = [{"step": 1, "epoch": 0, "loss": 9.0, "loss_per_anchor": 0.3, "delta_s": 0.1},
            {"step": 2, "epoch": 0, "loss": 8.0, "loss_per_anchor": 0.2, "delta_s": 0.2},
            {"step": 2, "epoch": 0, "dev": {"rsum": 30.0}, "probe": {"rank_images": 4.0}}]  # fmt: skip
    log = from_rows(rows)
    assert log.loss.tolist() == [0.3, 0.2]
    assert log.columns["delta_s"].tolist() == [0.1, 0.2]
    assert list(log.dev) == [(2, 30.0)]
    assert log.evaluated["rank_images"].tolist() == [4.0]


def test_when_a_row_was_written():
    again = [{"iter": i % 10, "loss": 1.0} for i in range(300)]
    assert from_rows(again).steps.tolist() == list(range(1, 301)), "a counter that restarts is not a clock"
    few = [{"epoch": i, "loss": 1.0} for i in range(30)]
    assert from_rows(few).steps[:2].tolist() == [100, 200]
    gaps = [{"step": 5, "loss": 1.0}, {"loss": 2.0}, {"step": 9, "loss": 3.0}]
    assert from_rows(gaps).steps.tolist() == [5, 5, 9]


def test_what_is_no_number():
    log = from_rows([{"loss": "nan", "name": "run", "ok": True, "note": None}, {"loss": "1e-3"}])
    assert math.isnan(log.loss[0])
    assert log.loss[1] == 1e-3
    assert set(log.columns) == {"loss"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "a,b\n1,2\n", "--column"),
        ("a.csv", "", "no numbers"),
        ("a.csv", "loss_a,loss_b\n1,2\n", "--column"),
        ("a.csv", b"loss\n\xff\xfe\n", "UTF-8"),
        ("a.jsonl", "{}\nloss 3\n", "line 2"),
        ("a.json", "[1, 2", "JSON"),
        ("a.json", "[" * 100_000, "JSON"),
        ("a.txt", "good morning", "no numbers"),
        ("x.tfevents", b"\xff" * 64, "TensorBoard"),
    ],
)
def test_files_that_are_no_logs(tmp_path, name, text, message):
    with pytest.raises(SelhnError, match=message):
        read_foreign(written(tmp_path, name, text))


def test_other_mistakes(tmp_path, monkeypatch):
    path = written(tmp_path, "log.csv", FORMS["log.csv"])
    with pytest.raises(NotFound, match="did you mean 'loss'"):
        read_foreign(path, "los")
    assert read_foreign(path, "lr").loss_name == "lr"
    with pytest.raises(NotFound):
        read_foreign(tmp_path)
    monkeypatch.setattr("selhn.diagnose.logs.MOST_ROWS", 3)
    with pytest.raises(SelhnError, match="tenth"):
        read_foreign(path)
    monkeypatch.setattr("selhn.diagnose.formats.MOST_BYTES", 3)
    monkeypatch.setattr("selhn.diagnose.formats.MOST_TEXT", 3)
    for name in ("log.csv", "events.out.tfevents.17"):
        with pytest.raises(SelhnError, match="fewer rows"):
            read_foreign(written(tmp_path, name, FORMS[name]))


def test_a_log_of_one_row_says_its_step():
    log = from_rows([{"step": 7, "loss": 1.0}])
    assert (log.steps.tolist(), log.clock) == ([7], "step")


def test_a_name_that_only_contains_that_of_held_out_data_is_one_of_training():
    for name in ("retrieval_loss", "latest_loss", "interval loss"):
        assert from_rows([{"step": 7, name: 2.0, "eval_loss": 1.0, "valLoss": 1.0}]).loss_name == name


@pytest.mark.parametrize("name", ["delta_s", "s_p", "spread"])
def test_a_number_of_the_scores_can_be_judged_as_the_loss(name):
    rows = [{"step": step, "loss": 1.0, "delta_s": 0.1, "s_p": 0.5, "spread": 0.1} for step in range(40)]
    rows[0] |= {name: float("nan")}
    assert judge(from_rows(rows, column=name)).kind


@pytest.mark.parametrize("name", ["log.jsonl", "log.json", "log.csv"])
def test_a_mark_at_the_start_of_a_file_is_passed_over(tmp_path, name):
    content = FORMS[name]
    path = written(tmp_path, name, "\ufeff" + content if isinstance(content, str) else content)
    assert read_foreign(path).steps.tolist() == [10, 20, 30, 40, 50]


def test_numbers_that_no_float_can_hold(tmp_path):
    log = from_rows([{"step": 1, "loss": 10**400}, {"step": 2, "loss": -(10**400)}, {"step": 3, "loss": 1.0}])
    assert log.loss.tolist() == [math.inf, -math.inf, 1.0]
    for name, text in (("log.jsonl", '{"loss": %s}\n' * 2), ("log.json", '[{"loss": %s}, {"loss": %s}]')):
        path = written(tmp_path, name, text % (("9" * 5000,) * 2))
        with pytest.raises(Damaged, match=name):
            read_foreign(path)


def test_a_step_that_is_no_number_is_that_of_the_row_before():
    rows = [{"step": "1", "loss": 1.0}, {"step": "inf", "loss": 1.0}, {"step": "3", "loss": 1.0}]
    assert from_rows(rows).steps.tolist() == [1, 1, 3]


def test_what_a_probe_without_a_loss_lacks():
    with pytest.raises(SelhnError):
        from_rows([{"step": 1, "delta_s": 0.1, "spread": 0.2}])


def test_rows_of_a_log():
    log = from_rows([{"epoch": number, "loss": float(number)} for number in range(10)])
    assert (log.clock, log.place(300.0), log.when(300.0)) == ("row", 3, "row 3")
    assert log.where(log.loss > 7).loss.tolist() == [8, 9]
    gaps = from_rows(
        [{"step": i, "loss": 1.0, **({"delta_s": float(i)} if i % 4 == 3 else {})} for i in range(10)]
    )
    thinned = gaps.thinned(3)
    assert thinned.steps.tolist() == [0, 4, 8]
    assert thinned.columns["delta_s"][:2].tolist() == [3, 7]
    assert gaps.thinned(10) is gaps
