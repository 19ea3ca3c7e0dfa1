"""What may happen to a folder: a kill at any point, a full disk, two writers, bytes that changed."""

import errno
import json
import os
import random
import shutil
import signal
import zlib
from itertools import product
from pathlib import Path

import pytest
import torch
from model_cases import make_model
from picture_cases import mutate

from selhn.base.errors import Damaged, Locked, SelhnError
from selhn.export import towers_of
from selhn.search import Index
from selhn.search.stores.checked_files import write_checked_json
from selhn.search.stores.segment_folder import IndexFolder


@pytest.mark.parametrize("function", ["write_file", "write_checked_json"])
@pytest.mark.parametrize("action", ["add", "delete", "update", "compact", "save", "build"])
def test_a_full_disk_leaves_the_index_as_it_was(index, make_item, model, monkeypatch, function, action):
    def no_room(path, *args):
        if path.name not in ("config.json", "lock"):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    before = index.ids()
    for module, name in product(("segment", "segment_folder"), (function, "write_rows")):
        monkeypatch.setattr(f"selhn.search.stores.{module}.{name}", no_room, raising=False)
    if function == "write_checked_json":  # the manifest itself is written beside its place
        monkeypatch.undo()
        monkeypatch.setattr(os, "replace", lambda old, new: no_room(old))
    actions = {
        "add": lambda: index.add([make_item(50)]),
        "delete": lambda: index.delete(["item3"]),
        "update": lambda: index.update([make_item(60, "item3")]),
        "compact": index.compact,
        "save": lambda: index.save(index.path),
        "build": lambda: Index.build(towers_of(model), [make_item(70)], index.path),
    }
    with pytest.raises(
        OSError, match="could not be written .No space left on device.: its earlier content is untouched"
    ):
        actions[action]()
    monkeypatch.undo()
    again = Index.load(index.path)
    again.check()
    assert again.ids() == index.ids() == before
    actions[action]()
    Index.load(index.path).check()
    assert Index.load(index.path).ids() != before or action in ("compact", "save")


def test_a_manifest_that_is_there_but_cannot_be_synced_keeps_its_files(index, make_item, monkeypatch):
    def no_room(folder, files=False):
        if folder == index.path:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("selhn.base.files.sync_folder", no_room)
    with pytest.raises(OSError, match="No space left"):
        index.add([make_item(50)])
    monkeypatch.undo()
    again = Index.load(index.path)
    again.check()
    assert "item50" in again


def test_a_disk_that_is_really_full(index, make_item):
    """A limit on the size of files is the nearest thing to a full disk that needs no rights."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = index.ids()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="could not be written"):
            index.add(make_item(number) for number in range(100, 200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    assert Index.load(index.path).ids() == before
    assert index.add(make_item(number) for number in range(100, 200)) == 100


def test_two_writers(index, make_item):
    other = Index.load(index.path)
    index.add([make_item(30)])
    with pytest.raises(ValueError, match="there is an item 'item30' already"):
        other.add([make_item(30)])
    other.add([make_item(31)])
    index.delete(["item31"])
    assert "item31" in other
    other.refresh()
    assert other.ids() == index.ids()
    with IndexFolder(index.path).writing(), pytest.raises(Locked, match=f"written by process {os.getpid()}"):
        index.add([make_item(32)])
    assert len(index.search("word1", k=100)) == 21


def test_readers_keep_what_they_opened(index, make_item):
    reader = Index.load(index.path)
    before = reader.search("word1 word2", k=20)
    index.update([make_item(90, "item3")])
    index.delete([f"item{n}" for n in range(10)])
    index.compact()
    assert reader.search("word1 word2", k=20) == before
    reader.refresh()
    assert len(reader) == 10


def test_another_model_and_another_version(index, tmp_path):
    other = make_model("vse_fc")
    with pytest.raises(
        SelhnError, match=r"written by another model \(rvse, .*\), not by this one \(vse_fc, "
    ):
        Index.load(index.path, towers_of(other))
    manifest = index.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum")
    write_checked_json(manifest, {**content, "version": 3, "selhn": "9.0"})
    with pytest.raises(
        Damaged, match=r"has version 3 of selhn-index \(selhn 9.0\), this selhn reads version 2"
    ):
        Index.load(index.path)


def damage(path, how):
    """Leave an index that cannot be opened, and give what is in its files."""
    manifest = path / "manifest.json"
    if how == "cut":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    elif how == "lost":
        manifest.unlink()
    elif how == "segment":
        next(path.rglob("images.npy")).unlink()
    elif how == "older":
        manifest.unlink()
        (path / "embeddings.safetensors").write_bytes(b"vectors")
    else:
        content = json.loads(manifest.read_text())
        content.pop("checksum")
        write_checked_json(manifest, {**content, "version": 3})
    return {path: path.read_bytes() for path in path.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("how", ["cut", "lost", "segment", "older", "newer"])
def test_an_index_that_cannot_be_opened_is_never_written_over(index, model, make_item, how):
    copy = Index.build(towers_of(model), [make_item(1)])
    before = damage(index.path, how)
    writers = [
        lambda: Index.build(towers_of(model), [make_item(2)], index.path),
        lambda: copy.save(index.path),
        lambda: Index.create(towers_of(model), index.path),
        lambda: Index.load(index.path),
    ]
    for write in writers:
        with pytest.raises(ValueError, match=str(index.path)) as refused:
            write()
        assert any(
            word in str(refused.value) for word in ("restore", "remove", "install", "give another name")
        )
        now = {
            path: path.read_bytes()
            for path in index.path.rglob("*")
            if path.is_file() and path.name != "lock"
        }
        assert now == before, "nothing is lost"


def test_a_first_save_that_was_stopped_is_done_again(model, make_item, tmp_path, monkeypatch):
    whole = Index.build(towers_of(model), [make_item(number) for number in range(5)])
    with monkeypatch.context() as patch:
        patch.setattr(
            "selhn.search.stores.segment_folder.IndexFolder.sweep", lambda *_: None
        )  # as after a kill
        patch.setattr("selhn.search.stores.segment_folder.Segment.open", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            whole.save(tmp_path / "i")
    assert list((tmp_path / "i" / "segments").iterdir())
    whole.save(tmp_path / "i")
    assert Index.load(tmp_path / "i").ids() == whole.ids()


def test_an_index_without_its_model(model, make_item, tmp_path):
    Index.create(towers_of(model), tmp_path / "i", keep_towers=False, about={"extractor": "x"}).add(
        [make_item(1)]
    )
    assert not (tmp_path / "i" / "models").exists()
    with pytest.raises(ValueError, match=r"has no model \(rvse made it\): give it with --model, or towers="):
        Index.load(tmp_path / "i")
    opened = Index.load(tmp_path / "i", towers_of(model))
    assert opened.ids() == ["item1"]
    assert opened.about == {"extractor": "x"}


def test_names_in_the_manifest_lead_nowhere_else(index, tmp_path):
    manifest = index.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum")
    for name in ("../../etc", "/etc", "..", ".hidden", 7, None):
        content["segments"][0]["name"] = name
        write_checked_json(manifest, content)
        with pytest.raises(Damaged):
            Index.load(index.path)


def segment(**change):
    return lambda content: content["segments"][0].update(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(width=-1),
        lambda content: content.update(width=True),
        lambda content: content.update(width=10**30),
        lambda content: content.update(width=9),
        lambda content: content.update(generation=-5),
        lambda content: content["model"].update(digest="../../private"),
        lambda content: content["model"].update(digest="/private", kept=True),
        lambda content: content.update(about={"model": ["ready"]}, model={**content["model"], "kept": False}),
        segment(items=-1),
        segment(items=0),
        segment(texts=-1),
        segment(texts=10**30),
        segment(files={}),
        segment(files={"../../x": [1, 2]}),
        segment(files={"items.jsonl": [float("inf"), 1]}),
        segment(files={"items.jsonl": {"1": 2, "2": 3}}),
        segment(files={"items.jsonl": "12"}),
        segment(deleted=["a.npy", 0, [0, 0]]),
        segment(deleted=["a.npy", [1], [0, 0]]),
        segment(deleted=[1, 2, 3]),
    ],
)
def test_a_forged_manifest_is_one_sentence(index, change):
    manifest = index.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum")
    change(content)
    (index.path / "deleted").mkdir(exist_ok=True)
    (index.path / "deleted" / "a.npy").write_bytes(b"")
    content["checksum"] = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    manifest.write_text(json.dumps(content))
    with pytest.raises(SelhnError):
        Index.load(index.path)


def test_forged_lines(index):
    manifest = index.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum")
    entry = content["segments"][0]
    (index.path / "segments" / entry["name"] / "items.jsonl").write_bytes(b"")
    entry["files"]["items.jsonl"] = [0, 0]
    write_checked_json(manifest, content)
    with pytest.raises(Damaged):
        Index.load(index.path)


@pytest.mark.parametrize("number", [150, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_mutated_files_are_one_sentence(model, make_item, tmp_path, number, precision):
    index = Index.create(towers_of(model), tmp_path / "i", precision=precision)
    index.add(make_item(n) for n in range(8))
    index.delete(["item2"])
    paths = sorted(
        path for path in index.path.rglob("*") if path.is_file() and path.name not in ("lock", "README.md")
    )
    chance, refused = random.Random(0), 0
    for _ in range(number):
        path = chance.choice(paths)
        whole = path.read_bytes()
        changed = mutate(whole, chance)
        path.write_bytes(changed)
        try:
            opened = Index.load(index.path)
            opened.search("word1", k=3)
            opened.check()
        except ValueError as error:
            refused += 1
            assert len(str(error)) > 20  # noqa: PT017
        else:
            # The checksum of the manifest is of what it says: a lost newline at its end is no damage.
            assert changed.rstrip() == whole.rstrip() or "models" in path.parts
        path.unlink()
        path.write_bytes(whole)
    assert refused > number / 2
    assert len(Index.load(index.path)) == 7


def test_damage_is_never_copied_into_a_new_segment(index, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.segment.CHECKED_AT_ONCE", 0)
    path = next(index.path.rglob("images.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    opened = Index.load(index.path)  # lengths alone are compared
    before = sorted(path.rglob("*"))
    with pytest.raises(Damaged, match="images.npy is not what was written"):
        opened.compact()
    assert sorted(path.rglob("*")) == before


def test_where_there_is_an_index(index, tmp_path):
    assert Index.exists(index.path)
    assert Index.exists(str(index.path))
    assert not Index.exists(tmp_path)
    assert not Index.exists(tmp_path / "nowhere")


def test_a_place_that_is_taken(index, model, tmp_path, make_item):
    with pytest.raises(ValueError, match="is an index already: open it with Index.load"):
        Index.create(towers_of(model), index.path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file: an index is a folder"):
        Index.create(towers_of(model), tmp_path / "file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for make in (
        lambda path: Index.create(towers_of(model), path),
        lambda path: Index.build(towers_of(model), [make_item(1)], path),
    ):
        with pytest.raises(ValueError, match="is not an index .it has 'thesis.txt'"):
            make(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_opened_vectors_are_mapped(index):
    part = Index.load(index.path).store.snapshot.segments[0]
    rows = part.vectors["image"].rows
    assert rows.untyped_storage().nbytes() >= rows.numel() * 4
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(index.path / "segments") in maps.read_text()
    assert torch.equal(rows, index.store.snapshot.segments[0].vectors["image"].rows)


def test_an_index_built_in_the_place_of_another_is_seen(index, model, make_item, tmp_path):
    place = tmp_path / "small.index"
    first = Index.build(towers_of(model), [make_item(number) for number in range(5)], place)
    reader = Index.load(place)
    shutil.rmtree(place)
    Index.build(towers_of(model), [make_item(7)], place)
    assert Index.load(place).generation == first.generation, "only who was born when tells them apart"
    reader.refresh()
    assert reader.ids() == ["item7"]
    first.add([make_item(9)])
    assert first.ids() == Index.load(place).ids() == ["item7", "item9"]
    first.check()


@pytest.mark.parametrize(
    "name", ["models/my_trained", "segments/cut.mp4", "approximate/notes.txt", "models/.hidden"]
)
def test_folders_that_are_called_like_ours(model, make_item, tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("years of work")
    for make in (
        lambda path: Index.create(towers_of(model), path),
        lambda path: Index.build(towers_of(model), [make_item(1)], path),
    ):
        with pytest.raises(ValueError, match=f"is not an index .it has '{name}'"):
            make(tmp_path)
    assert (tmp_path / name).read_text() == "years of work"


def test_several_changes_within_several(index, make_item):
    with index.writing():
        with index.writing():
            index.add([make_item(30)])
        index.add([make_item(31)])
    assert {"item30", "item31"} <= set(Index.load(index.path).ids())
