import logging

import pytest

from selhn.serve.log import Sparing


@pytest.fixture
def heard(monkeypatch):
    lines, now = [], [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.addFilter(Sparing())
    logger = logging.Logger("of this test")
    logger.addHandler(handler)
    return logger, lines, now


def say(logger, *values):
    logger.error("this happened: %s", *values)


def test_one_line_a_minute(heard):
    logger, lines, now = heard
    for number in range(1500):
        say(logger, number)
    assert lines == ["this happened: 0"]
    now[0] += 61
    say(logger, 7)
    say(logger, 8)
    assert lines[1:] == ["this happened: 7 (1,499 more since the last one)"]


def test_something_else_is_heard(heard):
    logger, lines, _ = heard
    say(logger, 1)
    say(logger, OSError("another kind"))
    logger.error("another place")
    for wrong in (KeyError, ZeroDivisionError, KeyError):
        try:
            raise wrong
        except Exception:
            logger.exception("a bug")
    assert len(lines) == 5
