import errno
import os
import subprocess
import sys

import pytest

from selhn import lock
from selhn.lock import LOCK_FILE, writing

HOLD = """
import sys, time
from pathlib import Path
from selhn.lock import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_is_told_who_holds_it_and_a_killed_one_holds_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"is being written by process {child.pid} on .*: wait"), writing(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert (tmp_path / LOCK_FILE).exists(), "the file of the dead holder is still there"
    with writing(tmp_path):
        pass


def test_one_process_cannot_hold_it_twice(tmp_path):
    with writing(tmp_path), pytest.raises(ValueError, match=f"process {os.getpid()}"), writing(tmp_path):
        pass


def test_it_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path):
        raise KeyError
    with writing(tmp_path):
        pass


def test_where_the_file_system_has_no_locks_work_goes_on(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock, "_lock", refuse)
    with writing(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()
