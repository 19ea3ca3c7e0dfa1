import errno
import io
import os
import shutil
import subprocess
import sys

import pytest
from planted import PLANTED, make_outside, plant
from read_only import content_of, read_only

from selhn.base import files, folders
from selhn.base.errors import Linked, Locked, SelhnError
from selhn.base.files import (
    LOCK_FILE,
    cache_folder,
    open_in_place,
    private_folder,
    refuse_links,
    sync_file,
    write_whole,
    writing,
)
from selhn.base.folders import new_folder, settle, whole_folder

HOLD = """
import sys, time
from pathlib import Path
from selhn.base.files import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_user_without_a_home_folder_is_told(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(files.Path, "home", nowhere)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == files.Path("/cache/selhn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(SelhnError, match="XDG_CACHE_HOME"):
        cache_folder()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no modes")
def test_a_private_file_and_folder(tmp_path):
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "a" / "b")
        (folder / "token.json").write_text("old")
        write_whole(folder / "token.json", "new", private=True)
        write_whole(folder / "open.json", "new")
    finally:
        os.umask(before)
    modes = [
        path.stat().st_mode & 0o777
        for path in (folder.parent, folder, folder / "token.json", folder / "open.json")
    ]
    assert modes == [0o700, 0o700, 0o600, 0o666]


def test_a_second_writer_is_told_who_holds_it_and_a_killed_one_holds_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(Locked, match=f"process {child.pid}"),
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
    with pytest.raises(SelhnError), new_folder(tmp_path / "deep" / "out"):
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
    monkeypatch.setattr(folders, "_swapped", lambda one, other: False)
    for stop in range(5):
        shutil.rmtree(path, ignore_errors=True)
        with new_folder(path, replace={"file"}) as partial:
            (partial / "file").write_text("old")
        (path / "notes").write_text("mine")
        script = f"""
import os
from pathlib import Path
from selhn.base import folders
folders._swapped = lambda one, other: False
renamed, rename = [], os.rename
def kill_at(*names):
    renamed.append(names)
    if len(renamed) > {stop}:
        os._exit(9)
    rename(*names)
os.rename = kill_at
with folders.new_folder(Path({str(path)!r}), replace={{"file"}}) as partial:
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


# Folders of strangers


@pytest.fixture
def outside(tmp_path):
    return make_outside(tmp_path / "outside")


@pytest.fixture
def stranger(tmp_path):
    (tmp_path / "stranger").mkdir()
    return tmp_path / "stranger"


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_but_files_and_folders_is_allowed(stranger, outside, kind):
    before = content_of(outside)
    (stranger / "deep").mkdir()
    (stranger / "deep" / "file").write_text("good")
    refuse_links(stranger)
    plant(stranger / "deep" / "entry", kind, outside)
    refuse_links(stranger, deep=False)
    refuse_links(stranger, ["file", "missing"])
    for names in (None, ["deep"], ["deep/entry"]):
        with pytest.raises(Linked):
            refuse_links(stranger, names)
    assert content_of(outside) == before


def test_a_link_that_the_user_names_may_lead_anywhere(stranger, tmp_path):
    (stranger / "file").write_text("good")
    named, loop = tmp_path / "named", tmp_path / "loop"
    named.symlink_to(stranger)
    loop.symlink_to(loop)
    refuse_links(named)
    for nothing in (loop, tmp_path / "missing", stranger / "file"):
        refuse_links(nothing)
        refuse_links(nothing, ["entry"])


@pytest.mark.parametrize("kind", [kind for kind in PLANTED if kind != "pipe"])
def test_a_link_is_replaced_and_not_written_through(stranger, outside, kind):
    before = content_of(outside)
    plant(stranger / "report.html", kind, outside)
    plant(stranger / ".report.html.partial", kind, outside)  # what earlier versions wrote to
    write_whole(stranger / "report.html", "ours")
    assert (stranger / "report.html").read_text() == "ours"
    assert not (stranger / "report.html").is_symlink()
    assert content_of(outside) == before


def test_a_pipe_or_a_device_is_not_replaced(stranger):
    os.mkfifo(stranger / "pipe")
    (stranger / "null").symlink_to(os.devnull)  # as /dev/stdout leads to a terminal
    for name in ("pipe", "null"):
        with pytest.raises(Linked, match=name):
            write_whole(stranger / name, "ours")
    assert sorted(os.listdir(stranger)) == ["null", "pipe"]


def test_a_written_file_has_the_permissions_of_a_new_one(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", "x")
        open_in_place(tmp_path / "grows").close()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_only_what_killed_processes_left_is_removed(tmp_path, outside):
    """A hidden file of ours that nobody holds, and an hour later one that an earlier version wrote."""
    gone = [f".a.json.{16 * 'e'}.partial", ".b.json.partial", f".link.{16 * 'a'}.partial"]
    stays = [".other.partial", f".b.json.{15 * 'e'}.partial", f"c.json.{16 * 'e'}.partial", "notes"]
    (tmp_path / gone[2]).symlink_to(outside / "secret.txt")
    for name in (*gone[:2], *stays):
        (tmp_path / name).write_text("old")
    for name in (*gone[1:], *stays):
        os.utime(tmp_path / name, (0, 0), follow_symlinks=False)
    (tmp_path / f".folder.{16 * 'a'}.partial").mkdir()
    (tmp_path / ".young.json.partial").write_text("being written by an earlier version")
    before = content_of(outside)
    for name in ("b.json", "young.json"):
        write_whole(tmp_path / name, "new")
    expected = {
        *stays,
        "b.json",
        "young.json",
        ".young.json.partial",
        "outside",
        f".folder.{16 * 'a'}.partial",
    }
    assert set(os.listdir(tmp_path)) == expected
    assert content_of(outside) == before


def test_what_is_being_written_is_not_removed(tmp_path):
    """Also if someone looks in the moment before it is locked."""

    def write_another(file):
        (hidden,) = tmp_path.glob(".a.json.*")
        write_whole(tmp_path / "b.json", "b")
        assert hidden.exists()
        file.write(b"a")

    write_whole(tmp_path / "a.json", write_another)
    assert (tmp_path / "a.json").read_text() == "a"
    if files.fcntl is None:
        return
    locks, flock = [], files.fcntl.flock

    def looked_at_before(descriptor, how):
        locks.append(how)
        for hidden in tmp_path.glob(".a.json.*") if len(locks) == 1 else ():
            hidden.unlink()
        flock(descriptor, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.fcntl, "flock", looked_at_before)
        write_whole(tmp_path / "a.json", "again")
    assert (tmp_path / "a.json").read_text() == "again"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


@pytest.mark.parametrize("locks", ["none", "refused"])
def test_where_files_cannot_be_locked_an_hour_decides(tmp_path, monkeypatch, locks):
    old, young = (tmp_path / f".a.json.{16 * letter}.partial" for letter in "ab")
    for path in (old, young):
        path.write_text("left")
    os.utime(old, (0, 0))
    if locks == "none":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(files.fcntl, "flock", lambda *_: full(errno.ENOLCK))
    write_whole(tmp_path / "b.json", "new")
    assert sorted(os.listdir(tmp_path)) == [young.name, "b.json"]


def full(number=errno.ENOSPC, path=None):
    raise OSError(number, os.strerror(number), path)


def test_a_full_disk_names_the_file(tmp_path):
    """Not the hidden one that was written, and nothing else."""
    for write in (
        lambda: write_whole(tmp_path / "file", lambda file: full()),
        lambda: write_whole(tmp_path / "file", lambda file: full(path=file.name)),  # a number
        lambda: write_whole(tmp_path / "file", lambda file: full(path=hidden_names(tmp_path)[0])),
        lambda: fill(tmp_path / "file", lambda hidden: full()),
        lambda: fill(tmp_path / "file", lambda hidden: full(path=str(hidden / "config.json"))),
        lambda: fill(tmp_path / "file", lambda hidden: full(path=os.fsencode(hidden / "config.json"))),
    ):
        with pytest.raises(OSError, match="No space") as told:
            write()
        assert told.value.filename == str(tmp_path / "file")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(PermissionError) as told:
        fill(tmp_path / "file", lambda hidden: full(errno.EACCES, "/elsewhere"))
    assert told.value.filename == "/elsewhere"
    with pytest.raises(OSError, match="^a sentence$"):
        fill(tmp_path / "file", lambda hidden: a_sentence())
    with pytest.raises(TimeoutError) as told:  # of a network, say
        fill(tmp_path / "file", lambda hidden: full(errno.ETIMEDOUT))
    assert told.value.filename is None


def hidden_names(folder):
    return [str(path) for path in folder.iterdir()]


def a_sentence():
    raise OSError("a sentence")


def fill(path, write):
    with new_folder(path) as hidden:
        write(hidden)


def test_what_grows_is_a_file_of_one_name(stranger, outside):
    with open_in_place(stranger / "log") as file:
        file.write(b"one")
    with open_in_place(stranger / "log") as file:
        assert file.read() == b"one"
        file.write(b"two")
    assert (stranger / "log").read_bytes() == b"onetwo"
    before = content_of(outside)
    for kind in PLANTED:
        plant(stranger / "log", kind, outside)
        with pytest.raises(Linked, match="log"):
            open_in_place(stranger / "log")
    (stranger / "log").unlink()
    os.link(outside / "secret.txt", stranger / "log")
    with pytest.raises(Linked, match="hard link"):
        open_in_place(stranger / "log")
    (stranger / "log").unlink()
    (stranger / "log").mkdir()
    with pytest.raises(IsADirectoryError):
        open_in_place(stranger / "log")
    assert content_of(outside) == before


def test_a_link_put_there_at_the_last_moment_is_not_followed(stranger, outside, monkeypatch):
    (stranger / "log").symlink_to(outside / "secret.txt")
    monkeypatch.setattr(files, "refuse_links", lambda *names: None)
    for follow in (open_in_place, sync_file):
        with pytest.raises(OSError, match="symbolic links") as told:
            follow(stranger / "log")
        assert told.value.errno == errno.ELOOP


@pytest.mark.parametrize("kind", [*PLANTED, "hard link"])
def test_a_lock_is_never_another_file(stranger, outside, kind):
    before = content_of(outside)
    if kind == "hard link":
        os.link(outside / "secret.txt", stranger / LOCK_FILE)
    else:
        plant(stranger / LOCK_FILE, kind, outside)
    with pytest.raises(Linked), writing(stranger):
        pass
    assert content_of(outside) == before


def test_the_lock_itself_follows_no_link(stranger, outside, monkeypatch):
    """Should one be put there after our own look."""
    (stranger / LOCK_FILE).symlink_to(outside / "secret.txt")
    monkeypatch.setattr(files, "open_in_place", lambda path: io.BytesIO())
    with pytest.raises(OSError, match="symbolic links"), writing(stranger):
        pass
    assert (outside / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("place", ["", "new", "ready", "previous", LOCK_FILE])
@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_beside_a_folder_is_neither_read_nor_removed(tmp_path, outside, kind, place):
    """The hidden folder in which it is made, and what is in that."""
    path, before = tmp_path / "model", content_of(outside)
    plant(tmp_path / ".model.partial" / place, kind, outside)
    for use in (settle, whole_folder, lambda path: fill(path, lambda hidden: None)):
        with pytest.raises(Linked):
            use(path)
    assert content_of(outside) == before
    assert not os.path.lexists(path)


def left_behind(path, *stages):
    for name in stages:
        (path.with_name(f".{path.name}.partial") / name).mkdir(parents=True)
        (path.with_name(f".{path.name}.partial") / name / "file").write_text(name)


@pytest.mark.parametrize(
    ("stages", "found"),
    [
        ((), None),
        (("new",), None),
        (("ready",), None),
        (("previous",), "previous"),
        (("previous", "ready"), "ready"),
    ],
)
def test_reading_finds_the_whole_copy_and_changes_nothing(tmp_path, stages, found):
    """What `settle` would make of it; also through a link that the user names, and on a read-only disk."""
    path, named = tmp_path / "model", tmp_path / "named"
    named.symlink_to(path)
    left_behind(path, *stages)
    before = content_of(tmp_path)
    with read_only(tmp_path):
        for asked in (path, named):
            place = whole_folder(asked)
            assert (place / "file").read_text() == found if found else place == asked
        settle(path)
    assert content_of(tmp_path) == before
    settle(path)
    assert path.exists() == bool(found)
    if found:
        assert (path / "file").read_text() == found
        assert whole_folder(path) == path
    assert not (tmp_path / ".model.partial").exists()


def test_a_link_in_a_circle_is_said(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert whole_folder(loop) == loop
    with pytest.raises(SelhnError):
        fill(loop, lambda hidden: None)


def test_a_private_folder_is_made_with_its_parents_and_one_that_exists_keeps_its_rights(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    made = private_folder(tmp_path / "shared" / "new" / "cache")
    modes = [one.stat().st_mode & 0o777 for one in (made, made.parent, made.parent.parent)]
    assert modes == [0o700, 0o700, 0o755]
    assert private_folder(tmp_path / "shared") == tmp_path / "shared"
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")
