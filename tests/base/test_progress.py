import time

import pytest

from selhn.base.progress import Progress, clock


def test_progress_says_lines_when_not_on_a_terminal(capsys):
    progress = Progress(10, label="[x] ")
    progress.step("loss 1")
    progress.say("epoch 1")
    assert capsys.readouterr().out == "[x] epoch 1\n"
    Progress(10, quiet=True).say("nothing")
    assert capsys.readouterr().out == ""


def test_progress_on_a_terminal_has_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = Progress(100)
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 10)
    progress.step("loss 0.2")
    assert "1/100   1%  loss 0.2  16:30 left" in capsys.readouterr().err


def test_work_that_was_done_before_does_not_count_in_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    progress = Progress(100, done=50)
    monkeypatch.setattr("time.monotonic", lambda: 110.0)
    progress.step("words", 10)
    assert "60/100  60%  words  0:40 left" in capsys.readouterr().err
    progress.clear()
    assert not capsys.readouterr().err.strip(" \r")


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "0:42"), (725, "12:05"), (11220, "3:07:00"), (59.6, "1:00")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
