import os
import signal

import pytest

from selhn.training.loop import interruptible


def test_the_first_ctrl_c_waits_and_the_second_does_not():
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_wait_too(name, default_signals):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with interruptible() as interrupted:
        os.kill(os.getpid(), number)
        assert interrupted() == number
        with pytest.raises(SystemExit) as stopped:
            os.kill(os.getpid(), number)
        assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)
