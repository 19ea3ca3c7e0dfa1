import errno
import os
import shutil
import subprocess
import sys

import pytest

from selhn.base import files
from selhn.base.errors import Locked, SelhnError
from selhn.base.files import LOCK_FILE, new_folder, settle, write_whole, writing

HOLD = """
import sys, time
from pathlib import Path
from selhn.base.files import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_is_told_who_holds_it_and_a_killed_one_holds_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(Locked, match=f"is being written by process {child.pid} on .*: wait"),
            writing(tmp_path),
        ):
            pass
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert (tmp_path / LOCK_FILE).exists(), "the file of the dead holder is still there"
    with writing(tmp_path):
        pass


def test_one_process_cannot_hold_it_twice(tmp_path):
    with writing(tmp_path), pytest.raises(Locked, match=f"process {os.getpid()}"), writing(tmp_path):
        pass


def test_it_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path):
        raise KeyError
    with writing(tmp_path):
        pass


def test_where_the_file_system_has_no_locks_work_continues(tmp_path, monkeypatch):
    def refuse(self, timeout):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(files.FileLock, "acquire", refuse)
    with writing(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_whole(path, "old")
    write_whole(path, b"new")
    assert path.read_text() == "new"

    def fail(*names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "newer")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.json", "new")]


def test_a_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "deep" / "out") as partial:
        (partial / "file").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "file").read_text() == "x"
    with pytest.raises(SelhnError, match="already exists"), new_folder(tmp_path / "deep" / "out"):
        pass
    with pytest.raises(KeyError), new_folder(tmp_path / "other"):
        raise KeyError
    assert [one.name for one in tmp_path.iterdir()] == ["deep"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty", replace_empty=True) as partial:
        (partial / "file").touch()
    assert (tmp_path / "empty" / "file").exists()


def test_what_a_killed_process_left_is_settled(tmp_path, monkeypatch):
    """Whatever of two renames was done, the next call finds one whole folder, and someone's notes in it."""
    path, hidden = tmp_path / "out", tmp_path / ".out.partial"
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    for stop in range(5):
        shutil.rmtree(path, ignore_errors=True)
        with new_folder(path, replace={"file"}) as partial:
            (partial / "file").write_text("old")
        (path / "notes").write_text("mine")
        script = f"""
import os
from pathlib import Path
from selhn.base import files
files._exchange = lambda one, other: False
renamed, rename = [], os.rename
def kill_at(*names):
    renamed.append(names)
    if len(renamed) > {stop}:
        os._exit(9)
    rename(*names)
os.rename = kill_at
with files.new_folder(Path({str(path)!r}), replace={{"file"}}) as partial:
    (partial / "file").write_text("new")
"""
        assert subprocess.run([sys.executable, "-c", script]).returncode == (9 if stop < 4 else 0)
        assert hidden.exists() == (stop < 4)
        settle(path, {"file"})
        assert not hidden.exists()
        assert (path / "file").read_text() == ("new" if stop >= 2 else "old")
        assert (path / "notes").read_text() == "mine"


def test_a_folder_that_is_being_written_is_left_alone(tmp_path):
    with new_folder(tmp_path / "out") as partial:
        settle(tmp_path / "out")
        with pytest.raises(Locked), new_folder(tmp_path / "out"):
            pass
        (partial / "file").touch()
    assert [one.name for one in tmp_path.rglob("*")] == ["out", "file"]
