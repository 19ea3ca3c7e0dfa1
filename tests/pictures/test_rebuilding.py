"""An index of a former ready model is made again: nothing that a person wrote is lost, wherever it is stopped."""

import shutil
from pathlib import Path

import pytest
from picture_cases import TinyBackbone, encoded, photo, stand_in
from pictures.test_library import small_model

from selhn.base.errors import Linked, Outdated, SelhnError
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library, index_pictures
from selhn.pictures.rebuilding import Former, open_or_start_again
from selhn.pictures.upkeep import bring_up_to_date
from selhn.search import Index

COMMIT = "selhn.search.stores.segment_folder.IndexFolder.commit"


def new_model():
    return create_model("rvse", tokenizer=small_model().tokenizer, feature_dim=4, dim=6).eval()


@pytest.fixture
def computed(tmp_path, monkeypatch):
    """What the vision model has computed since the index was made, in which people wrote; its model is now another."""
    backbone = TinyBackbone()
    stand_in(small_model, lambda: Extractor(backbone), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder, numbers in (("Pictures", range(4)), ("Other", range(4, 7))):
        (tmp_path / folder).mkdir()
        for number in numbers:
            (tmp_path / folder / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
        index_pictures(tmp_path / folder, tmp_path / "i", quiet=True)
    library = Library.open(tmp_path / "i")
    first = str(tmp_path / "Pictures" / "0.png")
    library.change(first, ["my own words"], {"tag": "mine", "camera": "Corrected"})
    library.index.albums.change("Favourites", add=[first])
    library.delete(str(tmp_path / "Other" / "6.png"))
    stand_in(new_model, lambda: Extractor(backbone), monkeypatch)
    backbone.calls.clear()
    return backbone.calls


def written(path):
    """What a person has written into an index."""
    index = Index.load(path)
    one = next(record for record in index.records() if record.id.endswith("0.png"))
    return len(index), one.captions, one.metadata.get("tag"), one.metadata.get("camera"), index.albums.all()


def whole(tmp_path):
    return 6, ("my own words",), "mine", "Corrected", {"Favourites": [str(tmp_path / "Pictures" / "0.png")]}


def test_it_is_made_again(tmp_path, computed):
    path = tmp_path / "i"
    for refused in (
        lambda: Library.open(path),
        lambda: index_pictures(tmp_path / "Pictures", path, quiet=True),
    ):
        with pytest.raises(Outdated, match="`selhn photos` makes it again by itself"):
            refused()
    library, words = open_or_start_again(path)
    assert "was made by a former version of the model: it is made again" in words
    assert (len(library.index), library.index.identity.width) == (0, 6)
    assert len(Former(path).records) == 6
    done = list(bring_up_to_date(path, [tmp_path / "Pictures"]))
    assert [one.added for one in done] == [4, 2], "all folders of the old one"
    assert computed == [1] * 6, "the vectors in the cache are those of the former model"
    assert written(path) == whole(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["Other", "Pictures", "cache", "i"]
    assert open_or_start_again(path)[1] == ""


@pytest.mark.parametrize("step", ["create", "copy", "first rename", "second rename", "index", "remove"])
def test_it_can_be_killed_anywhere(tmp_path, computed, monkeypatch, step):
    """What comes after a step never happens; then the same is started again."""
    path, renames = tmp_path / "i", []

    def die(*_, **__):
        raise KeyboardInterrupt

    def rename(one, other, real=Path.rename):
        renames.append(other)
        if step == ["first rename", "second rename", "remove"][len(renames) - 1]:
            die()
        return real(one, other)

    def work():
        open_or_start_again(path)
        if step == "index":
            killed.setattr(COMMIT, die)
        list(bring_up_to_date(path, [tmp_path / "Pictures"]))

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", rename)
        if step == "create":
            killed.setattr(COMMIT, die)
        if step == "copy":
            killed.setattr(shutil, "copy2", die)
        with pytest.raises(KeyboardInterrupt):
            work()
    step = ""
    work()
    assert written(path) == whole(tmp_path)
    assert not Former(path).path.exists()


def test_a_folder_that_is_missing(tmp_path, computed):
    """The old index stays until its pictures can be read again."""
    path = tmp_path / "i"
    (tmp_path / "Other").rename(tmp_path / "unplugged")
    open_or_start_again(path)
    list(bring_up_to_date(path, [tmp_path / "Pictures"]))
    assert (len(Index.load(path)), len(Former(path).records)) == (4, 6)
    (tmp_path / "unplugged").rename(tmp_path / "Other")
    list(bring_up_to_date(path, [tmp_path / "Pictures"]))
    assert written(path) == whole(tmp_path)
    assert not Former(path).path.exists()


def test_a_model_that_was_asked_for_is_not_replaced(tmp_path, computed):
    with pytest.raises(SelhnError, match="written by another model"):
        open_or_start_again(tmp_path / "i", towers_of(new_model()))
    new_model().save(tmp_path / "m")
    with pytest.raises(SelhnError, match="written by another model"):
        list(bring_up_to_date(tmp_path / "i", [tmp_path / "Pictures"], tmp_path / "m"))
    assert len(Index.load(tmp_path / "i", towers_of(small_model()))) == 6


def test_folders_that_nobody_named_here_are_not_read(tmp_path, computed, monkeypatch):
    """The index came from elsewhere: it is made again without them, and the old one stays."""
    path = tmp_path / "i"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    open_or_start_again(path)
    assert [done.added for done in bring_up_to_date(path, [tmp_path / "Other"])] == [2]
    assert all(name.startswith(str(tmp_path / "Other")) for name in Index.load(path).ids())
    assert len(Former(path).records) == 6


@pytest.mark.parametrize("name", [".i.making", "i.former"])
def test_a_link_beside_the_index_is_not_followed(tmp_path, computed, name):
    """An index from elsewhere may come with neighbours."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("mine")
    (tmp_path / name).symlink_to(home)
    with pytest.raises(Linked):
        open_or_start_again(tmp_path / "i")
    assert [path.name for path in home.iterdir()] == ["letter.txt"]
    assert Former(tmp_path / "i").records == {}
    assert not Former(tmp_path / "i").remove([tmp_path / "Pictures"])
    assert len(Index.load(tmp_path / "i", towers_of(small_model()))) == 6


@pytest.mark.parametrize("target", ["folder", "nothing", "manifest.json"])
def test_nobody_waits_for_an_index_behind_a_link(tmp_path, target):
    (tmp_path / "i").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "i" / "manifest.json").symlink_to(target if target == "manifest.json" else tmp_path / target)
    with pytest.raises(Linked):
        list(bring_up_to_date(tmp_path / "i", [tmp_path]))
