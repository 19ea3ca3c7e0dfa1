"""An index from elsewhere may have links and pipes inside: it is refused before anything is read or written."""

import errno
import os
import shutil
import time

import pytest

from selhn.base.errors import Linked
from selhn.export import towers_of
from selhn.search import Index, Item
from selhn.search.stores.segment_folder import IndexFolder

PLACES = [
    "segments", "deleted", "models", "approximate", "manifest.json", "albums.json", "removed.json", "lock",
    "albums.lock", "indexing.lock", "progress.json", "pictures.json", ".albums.json.partial", "segment",
    "items.jsonl", "notes.txt",
]  # fmt: skip


@pytest.fixture
def outside(tmp_path):
    """A folder of the user, with files that must stay."""
    folder = tmp_path / "home"
    (folder / "000001").mkdir(parents=True)
    for name in ("thesis.txt", "000001/letter.txt", "000007.npy"):
        (folder / name).write_text("mine")
    return folder


def content_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", ["folder", "file", "pipe", "loop"])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_or_pipe_is_refused_and_nothing_outside_changes(index, model, outside, place, kind):
    index.delete(["item3"])
    segment = next((index.path / "segments").iterdir())
    path = {"segment": segment, "items.jsonl": segment / "items.jsonl"}.get(place, index.path / place)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    target = {"folder": outside, "file": outside / "thesis.txt", "loop": path}.get(kind)
    os.mkfifo(path) if target is None else path.symlink_to(target)
    before = content_of(outside)
    with pytest.raises(Linked):
        Index.load(index.path)
    with pytest.raises(Linked):
        Index.build(
            towers_of(model),
            [Item("new", vector=index.store.get(["item1"], True)["item1"].vector)],
            index.path,
        )
    with pytest.raises(Linked):
        index.add([])
    assert content_of(outside) == before


def test_a_sweep_removes_only_what_has_one_of_our_names(index, make_item):
    kept = [
        index.path / "segments" / "notes",
        index.path / "deleted" / "mine.npy",
        index.path / "models" / "vgg",
    ]
    left = [index.path / "segments" / "000090", index.path / "models" / f".{'a' * 24}.partial"]
    for folder in (*kept, *left):
        folder.mkdir(parents=True)
    rows = index.path / "deleted" / "000091.npy"
    rows.write_bytes(b"half")
    index.add([make_item(40)])
    assert [path.exists() for path in (*kept, *left, rows)] == [True] * 3 + [False] * 3


def test_files_that_killed_processes_left_are_swept_by_the_next_writer(index, make_item):
    names = [".albums.json.partial", ".manifest.json.partial", f".albums.json.{'0' * 16}.partial"]
    for name in names:
        (index.path / name).write_text("half")
        os.utime(index.path / name, (time.time() - 7200,) * 2)
    Index.load(index.path).search("word1")
    assert all((index.path / name).exists() for name in names), "reading settles nothing"
    index.add([make_item(40)])
    index.albums.change("Trip", add=["item40"])
    assert not any((index.path / name).exists() for name in names)


def test_a_first_manifest_that_a_kill_left_half_written_is_no_obstacle(tmp_path, model):
    place = tmp_path / "new.index"
    place.mkdir()
    (place / f".manifest.json.{'0' * 16}.partial").write_text("half")
    assert len(Index.create(towers_of(model), place)) == 0


def test_no_file_outside_is_written_by_a_name_that_the_manifest_announces(index, outside):
    """A hard link is a file like any other, until somebody writes to it."""
    number = IndexFolder(index.path).open().next_name
    (index.path / "deleted").mkdir(exist_ok=True)
    os.link(outside / "thesis.txt", index.path / "deleted" / f"{number:06}.npy")
    before = content_of(outside)
    index.delete(["item3"])
    assert content_of(outside) == before


def test_a_new_index_is_for_its_user_alone(tmp_path, model):
    Index.create(towers_of(model), tmp_path / "new.index")
    assert (tmp_path / "new.index").stat().st_mode & 0o777 == 0o700


def test_an_index_opens_and_answers_where_nothing_can_be_written(index, monkeypatch):
    index.albums.change("Trip", add=["item1"])
    expected = [hit.id for hit in index.search("word1 word2", k=3)]

    def refuse(*args, **settings):
        raise OSError(errno.EROFS, "Read-only file system")

    opened = os.open
    for name in ("mkdir", "replace", "rename", "unlink", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *mode, **how: refuse() if flags & writes else opened(path, flags, *mode, **how),
    )
    again = Index.load(index.path)
    assert [hit.id for hit in again.search("word1 word2", k=3)] == expected
    assert [hit.id for hit in again.search("word1", where='album = "Trip"')] == ["item1"]


@pytest.mark.parametrize("change", ["albums", "delete"])
def test_a_full_disk_is_told_with_the_place(index, monkeypatch, change):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    acts = {
        "albums": lambda: index.albums.change("Trip", add=["item1"]),
        "delete": lambda: index.delete(["item3"]),
    }
    with pytest.raises(OSError, match="No space left on device") as told:
        acts[change]()
    assert str(index.path / "albums.json" if change == "albums" else index.path) in str(told.value)
