"""A folder of pictures and its index, with a vision model and a text model that need no weights."""

import json
import os
import sys
import threading

import pytest
import torch
from picture_cases import TinyBackbone, encoded, huge_png, photo

from selhn import photos
from selhn.features import Extractor
from selhn.models import create_model
from selhn.photos import default_index, index_pictures, picture_id, regions_of
from selhn.progress import Progress
from selhn.retrieve import Index, changes
from selhn.text import Vocabulary


def small_model():
    torch.manual_seed(0)
    words = Vocabulary.build(["a red ball", "a dog in the snow"], 1)
    return create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()


@pytest.fixture
def ready(monkeypatch, tmp_path):
    """Small models in place of those that are packages of their own; gives what the backbone computed."""
    backbone = TinyBackbone()
    for module in (photos, changes):
        monkeypatch.setattr(module, "load_ready_model", small_model)
    monkeypatch.setattr(photos, "load_extractor", lambda name, device="cpu": Extractor(backbone))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return backbone.calls


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "Pictures"
    (place / "trip").mkdir(parents=True)
    for number in range(6):
        (place / ("trip" if number % 2 else ".") / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    return place


def test_a_folder_is_indexed_and_kept_up_to_date(ready, folder, tmp_path):
    first = index_pictures(folder, quiet=True)
    assert first.index.path == default_index() == tmp_path / "share" / "selhn" / "pictures.index"
    assert (first.added, first.changed, first.removed, first.unchanged) == (6, 0, 0, 0)
    assert first.index.about["model"] == first.index.about["extractor"] == "ready"
    assert not (default_index() / "models").exists(), "the ready model is named, not copied"
    names = sorted(str(path) for path in folder.rglob("*.png"))
    assert sorted(Index.load(default_index()).ids()) == names
    ready.clear()
    again = index_pictures(folder, quiet=True)
    assert (again.added, again.changed, again.removed, again.unchanged) == (0, 0, 0, 6)
    (folder / "0.png").write_bytes(encoded(photo(90), "PNG"))
    (folder / "trip" / "1.png").rename(folder / "moved.png")
    (folder / "2.png").unlink()
    (folder / "new.png").write_bytes(encoded(photo(91), "PNG"))
    third = index_pictures(folder, quiet=True)
    assert (third.added, third.changed, third.removed, third.unchanged) == (2, 1, 2, 3)
    assert sum(ready) == 2, "of the moved one the features are known"
    assert sorted(third.index.ids()) == sorted(str(path) for path in folder.rglob("*.png"))
    fresh = index_pictures(folder, tmp_path / "other.index", quiet=True)
    for name in fresh.index.ids():
        number, row = third.index.snapshot.place(name)
        theirs, their_row = fresh.index.snapshot.place(name)
        ours = third.index.snapshot.parts[number].segment.images.rows[row]
        torch.testing.assert_close(ours, fresh.index.snapshot.parts[theirs].segment.images.rows[their_row])


def test_two_folders_share_an_index(ready, folder, tmp_path):
    other = tmp_path / "Pictures2"
    other.mkdir()
    (other / "0.png").write_bytes(encoded(photo(50), "PNG"))
    index_pictures(folder, quiet=True)
    both = index_pictures(other, quiet=True)
    assert (both.added, both.removed, len(both.index)) == (1, 0, 7)
    assert len(both.index.search("a dog", k=10, where="folder = trip")) == 3


def test_what_files_say_is_kept(ready, folder):
    (folder / "captions.csv").write_text("image,caption\n0.png,a red ball\ngone.png,a dog\n")
    done = index_pictures(folder, captions=folder / "captions.csv", quiet=True)
    assert done.index.get(picture_id(folder / "0.png")).captions == ("a red ball",)
    assert [name for name, _ in done.report.refused] == ["gone.png"]
    assert done.index.search("a red ball", find="text")[0].name == "a red ball"
    (folder / "0.png").write_bytes(encoded(photo(80), "PNG"))
    assert index_pictures(folder, quiet=True).changed == 1
    index = Index.load(default_index())
    assert index.get(picture_id(folder / "0.png")).captions == ("a red ball",), "captions stay with a changed picture"
    (folder / "captions.csv").write_text("image,caption\n3.png,a dog\n")
    assert index_pictures(folder, captions=folder / "captions.csv", quiet=True).changed == 2


def test_bad_files_are_listed_and_never_fatal(ready, folder):
    index_pictures(folder, quiet=True)
    bad = {"bomb.png": huge_png(), "empty.jpg": b"", "cut.png": encoded(photo(3), "PNG")[:50], "5.txt": b"x"}
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "0.png").write_bytes(b"no longer a picture")
    (folder / "old.png").write_bytes(encoded(photo(60), "PNG"))
    os.utime(folder / "old.png", (-(10**11), 10**12))
    if sys.platform == "linux":
        (folder / os.fsdecode(b"caf\xe9.png")).write_bytes(encoded(photo(61), "PNG"))
        (folder / os.fsdecode(b"a.\xe9")).write_bytes(b"x")
    done = index_pictures(folder, quiet=True)
    refused = {name for name, _ in done.report.refused}
    assert {"bomb.png", "empty.jpg", "cut.png", "0.png"} == refused - {"caf\\udce9.png"}
    assert (done.added, done.removed) == (1, 1)
    assert picture_id(folder / "0.png") not in done.index
    said = str(done)
    said.encode()
    assert "left out: bomb.png: this file is too large (" in said
    assert "1 .txt" in said
    kept = json.loads((default_index() / "pictures.json").read_text())
    assert len(kept["left out"]) == len(refused)


def test_it_goes_on_after_a_stop(ready, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(photos, "PICTURES_AT_ONCE", 2)
    step = Progress.step

    def stop(self, *args):
        if self.done >= 4:
            raise KeyboardInterrupt
        step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", stop)
        with pytest.raises(KeyboardInterrupt, match="what was done is kept, and the same command goes on"):
            index_pictures(folder, quiet=True)
    assert len(Index.load(default_index())) == 4
    done = index_pictures(folder, quiet=True)
    assert (done.added, done.unchanged) == (2, 4)


def test_two_at_once(ready, folder):
    index = index_pictures(folder, quiet=True).index
    (folder / "new.png").write_bytes(encoded(photo(70), "PNG"))
    told = []

    def second():
        try:
            index_pictures(folder, quiet=True)
        except ValueError as error:
            told.append(str(error))

    with index.writing():
        other = threading.Thread(target=second)
        other.start()
        other.join()
        index.delete(index.ids()[:1])
    assert "is being written by process" in told[0]
    assert len(Index.load(default_index())) == 5


def test_an_index_of_other_things(ready, folder, tmp_path, monkeypatch):
    Index.create(small_model(), tmp_path / "data.index")
    with pytest.raises(ValueError, match="was not made from pictures"):
        index_pictures(folder, tmp_path / "data.index")
    with pytest.raises(ValueError, match="was not made from pictures"):
        regions_of(Index.load(tmp_path / "data.index"), folder / "0.png")
    index_pictures(folder, quiet=True)
    with pytest.raises(ValueError, match="was made with the extractor ready"):
        index_pictures(folder, extractor="timm:resnet18")
    monkeypatch.setattr(photos, "load_extractor", lambda name, device="cpu": Extractor(TinyBackbone(), cells=2))
    with pytest.raises(ValueError, match=r"was made with other features \(tiny, grid 3, raw, \)"):
        index_pictures(folder)


def test_a_model_of_ones_own(ready, folder, tmp_path):
    done = index_pictures(folder, tmp_path / "i", model=small_model(), extractor="efficientnet_lite0", quiet=True)
    assert done.index.about == {"extractor": "efficientnet_lite0", "features": Extractor(TinyBackbone()).identity}
    assert Index.load(tmp_path / "i").ids() == done.index.ids()
    words = Vocabulary.build(["a dog"], 1)
    with pytest.raises(ValueError, match="rvse takes features of 7 numbers and ready gives 4"):
        index_pictures(folder, tmp_path / "j", model=create_model("rvse", tokenizer=words, feature_dim=7, dim=8))
    assert not (tmp_path / "j").exists()


def test_places_without_pictures(ready, folder, tmp_path):
    index_pictures(folder, quiet=True)
    with pytest.raises(ValueError, match="there is no folder"):
        index_pictures(tmp_path / "nowhere")
    for path in folder.rglob("*.png"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no pictures"):
        index_pictures(folder)
    assert len(Index.load(default_index())) == 6, "a disk that is not there takes nothing away"


def test_regions_to_ask_with(ready, folder):
    index = index_pictures(folder, quiet=True).index
    regions = regions_of(index, folder / "0.png")
    assert regions.shape == (10, 4)
    assert index.search(image=regions, find="image")[0].id == picture_id(folder / "0.png")
    with pytest.raises(ValueError, match="is missing or no file"):
        regions_of(index, folder / "nothing.png")
