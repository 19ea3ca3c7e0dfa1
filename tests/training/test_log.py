import errno
import os

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.diagnose import StallAlarm
from selhn.runs import read_log
from selhn.training.log import READ_EVERY, Meter, Numbers


def numbers(loss=0.2, delta_s=0.001, spread=0.01):
    named = {"loss": loss, "loss_per_anchor": loss, "delta_s": delta_s, "spread": spread}
    return Numbers.of({name: torch.tensor(value) for name, value in named.items()})


def test_one_line_a_step(tmp_path):
    with Meter(tmp_path / "log.jsonl", 0, None) as meter:
        for step in range(1, READ_EVERY + 4):
            meter.add(step, 0, numbers(loss=step / 10), read=False)
        meter.write({"step": step, "epoch": 0, "dev": {"rsum": 3.0}})
        meter.flush()
    rows = read_log(tmp_path / "log.jsonl")
    assert sorted(row["step"] for row in rows if "loss" in row) == list(range(1, READ_EVERY + 4))
    assert rows[0]["loss"] == pytest.approx(0.1)
    assert "loss/anchor" in meter.summary


@pytest.mark.parametrize("name", ["loss", "grad_image"])
def test_a_run_whose_numbers_are_not_finite_ends_before_its_next_checkpoint(tmp_path, name):
    with Meter(tmp_path / "log.jsonl", 0, None) as meter:
        for step in (1, 2, 3):
            found = dict(zip(*numbers())) | {"grad_image": torch.tensor(1.0)}
            meter.add(
                step, 0, Numbers.of(found | ({name: torch.tensor(torch.inf)} if step > 1 else {})), read=False
            )
        with pytest.raises(SelhnError, match=name):
            meter.flush()
    assert [row["step"] for row in read_log(tmp_path / "log.jsonl")] == [1, 2, 3], (
        "the log says how it came about"
    )


def test_going_on_from_a_position_drops_what_came_after(tmp_path):
    path = tmp_path / "log.jsonl"
    with Meter(path, 0, None) as meter:
        meter.write({"step": 1})
        position = meter.flush()
        meter.write({"step": 2})
    with Meter(path, position, None) as again:
        again.write({"step": 2, "again": True})
    assert read_log(path) == [{"step": 1}, {"step": 2, "again": True}]


def test_the_alarm_hears_every_step():
    warnings = []
    meter = Meter(None, 0, StallAlarm(0.2, patience=50), warnings.append)
    for step in range(1, 201):
        meter.add(step, 0, numbers(), read=False)
    assert len(warnings) == 1
    assert meter.alarm.said == warnings[0]


def test_what_it_says_at_a_checkpoint_is_heard_too(tmp_path):
    warnings = []
    with Meter(tmp_path / "log.jsonl", 0, StallAlarm(0.2, patience=50), warnings.append) as meter:
        for step in range(1, 201):
            meter.add(step, 0, numbers(), read=False)
            if step % 10 == 0:
                meter.flush()
    assert len(warnings) == 1


def test_the_steps_before_an_error_are_written(tmp_path):
    def broken_off():
        with Meter(tmp_path / "log.jsonl", 0, None) as meter:
            for step in range(1, 8):
                meter.add(step, 0, numbers(), read=False)
            raise ValueError("NaN")

    with pytest.raises(ValueError, match="NaN"):
        broken_off()
    assert [row["step"] for row in read_log(tmp_path / "log.jsonl")] == list(range(1, 8))


def test_a_log_shorter_than_its_checkpoint_says(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n")
    with pytest.raises(SelhnError):
        Meter(tmp_path / "log.jsonl", 100, None)
    assert (tmp_path / "log.jsonl").read_text() == "{}\n"


def test_a_number_of_some_steps_only(tmp_path):
    """A model may have an extra loss that begins later."""
    named = {"loss": 0.2, "loss_per_anchor": 0.2, "delta_s": 0.1}
    with Meter(tmp_path / "log.jsonl", 0, None) as meter:
        for step, more in ((1, {}), (2, {"aux_words": 3.0}), (3, {})):
            row = {name: torch.tensor(value) for name, value in (named | more).items()}
            meter.add(step, 0, Numbers.of(row), read=False)
    assert [row.get("aux_words") for row in read_log(tmp_path / "log.jsonl")] == [None, 3.0, None]


def test_a_full_disk_names_the_log(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Meter(tmp_path / "log.jsonl", 0, None) as meter:
        meter.write({"step": 1})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space") as told:
            meter.flush()
    assert told.value.filename == str(tmp_path / "log.jsonl")
