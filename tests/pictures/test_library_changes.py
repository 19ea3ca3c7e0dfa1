"""Pictures that are added, changed and deleted through a library, as the service does it."""

import errno
import os
from pathlib import Path

import pytest
import torch
from picture_cases import TinyBackbone, dng, encoded, exif_of, heic, huge_png, photo

from selhn.base.errors import Linked, SelhnError
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library, index_pictures
from selhn.pictures.picture_files import drawn
from selhn.pictures.plans import make_plan
from selhn.pictures.upkeep import bring_up_to_date
from selhn.search import Index, Item
from selhn.text import Vocabulary

NUMBER = 3


@pytest.fixture
def library(tmp_path, monkeypatch):
    extractor = Extractor(TinyBackbone())
    monkeypatch.setattr("selhn.export.matcher_towers.load_extractor", lambda name, device="cpu": extractor)
    (tmp_path / "Pictures").mkdir()
    for number in range(NUMBER):
        (tmp_path / "Pictures" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    torch.manual_seed(0)
    words = Vocabulary.build(["a red dog", "a blue dog", "a grey dog"], 1)
    model = create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()
    path, cache = tmp_path / "pictures.index", tmp_path / "cache"
    index_pictures(
        tmp_path / "Pictures", path, towers=towers_of(model), extractor="tiny", quiet=True, cache=cache
    )
    return Library.open(path)


def test_a_picture_is_only_that_of_an_item(library, tmp_path):
    (tmp_path / "Pictures" / "unknown.png").write_bytes(encoded(photo(1), "PNG"))
    assert library.picture(str(tmp_path / "Pictures" / "unknown.png")) is None
    library.index.add([], existing="skip")
    path = library.picture(library.index.ids()[0])
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert library.picture(library.index.ids()[0]) is None


def test_an_indexed_link_is_shown_as_long_as_it_leads_to_what_was_indexed(library, tmp_path):
    outside = tmp_path / "elsewhere.png"
    outside.write_bytes(encoded(photo(31), "PNG"))
    link = tmp_path / "Pictures" / "link.png"
    link.symlink_to(outside)
    library.apply(library.plan(library.scan(tmp_path / "Pictures")), cache=tmp_path / "cache", quiet=True)
    assert library.picture(str(link)) == outside
    link.unlink()
    link.symlink_to("/etc/hostname")
    assert library.picture(str(link)) is None


def test_adding_changing_deleting(library, tmp_path):
    content = encoded(photo(77))
    name = library.add(content, 10**6, ["a red dog"], {"own": 1})
    assert library.add(content, 10**6, ["a blue dog"], {}) == name
    assert len(library.index) == NUMBER + 1
    path = library.picture(name)
    assert path.parent == tmp_path / "Pictures" / "uploads"
    assert path.read_bytes() == content
    record = library.index.get(name)
    assert record.captions == ("a blue dog",)
    assert record.metadata["folder"] == "uploads"
    library.change(name, ["a grey dog"], {"stars": 5, "file": "../../elsewhere"})
    record = library.index.get(name)
    assert record.captions == ("a grey dog",)
    assert record.metadata["stars"] == 5
    assert record.metadata["file"] == path.name, "what indexing wrote stays"
    library.change(name, None, None)
    assert library.index.get(name) == record
    library.delete(name)
    assert name not in library.index
    assert not path.exists()
    first = library.index.ids()[0]
    file = library.picture(first)
    library.delete(first)
    assert file.exists(), "people's own files are never deleted"


def test_what_was_added_stays_when_the_folder_is_indexed_again(library, tmp_path):
    name = library.add(encoded(photo(77)), 10**6, ["a red dog"], {"stars": 5})
    library.towers.extractor.backbone.calls.clear()
    again = index_pictures(tmp_path / "Pictures", library.index.path, quiet=True, cache=tmp_path / "cache")
    assert (again.added, again.changed, again.removed) == (0, 0, 0)
    assert not library.towers.extractor.backbone.calls
    assert again.index.get(name).metadata["stars"] == 5


def test_what_was_removed_stays_out_until_it_is_indexed_again(library, tmp_path, monkeypatch):
    """`selhn photos` brings the index up to date at every start: what people removed must not come back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pictures, path = tmp_path / "Pictures", library.index.path
    first, second, _ = library.index.ids()
    library.delete(first)
    library.delete(second)
    bring = lambda: sum(done.added for done in bring_up_to_date(path, [pictures]))  # noqa: E731
    assert bring() == 0
    Path(second).write_bytes(encoded(photo(78), "PNG"))
    assert bring() == 1, "another picture of that name"
    assert index_pictures(pictures, path, quiet=True).added == 1, "`selhn index` was asked for this folder"
    assert bring() == 0
    Index.load(path).delete([first])
    assert bring() == 1, "what was added again is not kept out any more"


def test_uploads_that_would_leave_the_folder(library, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "Pictures" / "uploads").symlink_to(tmp_path / "outside")
    with pytest.raises(Linked):
        library.add(encoded(photo(1)), 10**6, [], {})
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", ["file", "pipe", "missing"])
def test_an_upload_whose_name_is_a_link_or_pipe(library, tmp_path, kind):
    content, outside = encoded(photo(77)), tmp_path / "outside.jpg"
    path = Path(library.add(content))
    library.delete(str(path))
    if kind == "file":
        outside.write_bytes(content)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside)
    with pytest.raises(Linked):
        library.add(content)
    assert outside.exists() == (kind == "file")
    assert str(path) not in library.index


def test_an_upload_that_does_not_fit_names_its_file(library, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as told:
        library.add(encoded(photo(77)))
    assert str(tmp_path / "Pictures" / "uploads") in str(told.value)
    with pytest.raises(OSError, match="No space left on device") as told:
        library.delete(library.index.ids()[0])
    assert str(library.index.path / "removed.json") in str(told.value)
    monkeypatch.undo()
    assert len(library.index) == NUMBER


@pytest.mark.parametrize("content", [b"", b"no picture", huge_png()])
def test_what_is_no_picture_is_kept_nowhere(library, tmp_path, content):
    with pytest.raises(SelhnError, match="this file"):
        library.add(content, 10**6, [], {})
    assert not (tmp_path / "Pictures" / "uploads").exists()
    assert len(library.index) == NUMBER


def test_files_of_ones_own_in_a_folder_of_that_name_stay(library, tmp_path):
    own = tmp_path / "Pictures" / "uploads" / "wedding.png"
    own.parent.mkdir()
    own.write_bytes(encoded(photo(5)))
    index_pictures(tmp_path / "Pictures", library.index.path, quiet=True, cache=tmp_path / "cache")
    library.index.refresh()
    library.delete(str(own))
    assert own.exists()
    assert str(own) not in library.index


def test_an_upload_that_was_interrupted(library, tmp_path, monkeypatch):
    """A killed process leaves no part of a picture under its name, and an older part of one is replaced."""
    content, uploads = encoded(photo(77)), tmp_path / "Pictures" / "uploads"
    whole = Path(library.add(content))
    library.delete(str(whole))
    seen = []
    monkeypatch.setattr("os.replace", lambda *paths: seen.append(whole.exists()) or 1 // 0)
    with pytest.raises(ZeroDivisionError):
        library.add(content)
    assert seen == [False], "the name is given last"
    assert list(uploads.iterdir()) == []
    monkeypatch.undo()
    whole.write_bytes(content[:50])
    left, own = uploads / f".{whole.name}.partial", uploads / ".film.partial"
    left.write_bytes(content[:50])
    own.write_bytes(b"somebody's download")
    os.utime(own, (1, 1))
    assert library.add(content) == str(whole)
    assert whole.read_bytes() == content
    assert left.exists(), "somebody may be writing it"
    os.utime(left, (1, 1))
    whole.write_bytes(content[:50])
    library.add(content)
    assert not left.exists()
    assert own.exists(), "not a name that selhn gives"


FACTS = {
    **{"taken": "2019-06-14 15:03:22", "camera": "Apple iPhone 12", "width": 40, "height": 30},
    **{"latitude": 48.858222, "longitude": 2.2945},
}


def facts_of(index, path):
    metadata = index.get(str(path)).metadata
    return {name: value for name, value in metadata.items() if name in FACTS}


def index_again(library, tmp_path):
    library.towers.extractor.backbone.calls.clear()
    done = index_pictures(tmp_path / "Pictures", library.index.path, quiet=True, cache=tmp_path / "cache")
    library.index.refresh()
    return done


def test_what_pictures_say_is_in_the_index(library, tmp_path):
    """Also of those whose features are known; of a file that has changed only what it says now."""
    one, copy = tmp_path / "Pictures" / "one.jpg", tmp_path / "Pictures" / "copy.jpg"
    one.write_bytes(encoded(photo(7), exif=exif_of().tobytes()))
    assert index_again(library, tmp_path).added == 1
    copy.write_bytes(one.read_bytes())
    assert index_again(library, tmp_path).added == 1
    assert not library.towers.extractor.backbone.calls, "its features are those of the first"
    assert facts_of(library.index, one) == facts_of(library.index, copy) == FACTS
    found = library.index.search(
        "a red dog", where='taken >= "2019-06" and taken < "2019-07" and latitude > 48'
    )
    assert {hit.id for hit in found} == {str(one), str(copy)}
    library.change(str(one), None, {"stars": 5, "taken": "2019-06-15 15:03:22"})
    assert facts_of(library.index, one) == {**FACTS, "taken": "2019-06-15 15:03:22"}, (
        "people can correct them"
    )
    assert index_again(library, tmp_path).changed == 0
    one.write_bytes(encoded(photo(7, (60, 20))))
    assert index_again(library, tmp_path).changed == 1
    assert facts_of(library.index, one) == {"width": 60, "height": 20}, (
        "the place is not in the file any more"
    )
    assert library.index.get(str(one)).metadata["stars"] == 5


def test_what_an_upload_says(library, tmp_path):
    name = library.add(
        encoded(photo(8), exif=exif_of(place={}).tobytes()), metadata={"camera": "mine", "latitude": 1.5}
    )
    assert facts_of(library.index, name) == {
        **{"taken": FACTS["taken"], "camera": "mine", "width": 40, "height": 30, "latitude": 1.5}
    }
    assert index_again(library, tmp_path).changed == 0


def test_uploads_of_phones_and_cameras_are_found_again(library, tmp_path):
    contents = heic(photo(7)), dng(encoded(photo(8))), encoded(photo(9), "AVIF")
    names = [library.add(content) for content in contents]
    assert [Path(name).suffix for name in names] == [".heif", ".dng", ".avif"]
    done = index_again(library, tmp_path)
    assert (done.added, done.changed, done.removed, len(done.index)) == (0, 0, 0, NUMBER + 3)
    for name in names:
        assert drawn(Path(name).read_bytes(), name, 160).startswith(b"\xff\xd8"), (
            "browsers cannot show two of them"
        )


def test_an_index_made_before_pictures_were_asked(library, tmp_path):
    """It gets the facts from the headers of the files; nothing is decoded or computed, and people's words stay."""
    one = tmp_path / "Pictures" / "one.jpg"
    one.write_bytes(encoded(photo(7), exif=exif_of().tobytes()))
    index_again(library, tmp_path)
    index = library.index
    before = {record.id: record for record in index.records()}
    index.update(
        Item(name, None, None, ("a dog",), {k: v for k, v in record.metadata.items() if k not in FACTS})
        for name, record in before.items()
    )
    (bare,) = (record for record in index.records() if record.id == str(one))
    index.update([Item(bare.id, None, None, bare.captions, {**bare.metadata, "camera": "my first one"})])
    plan = make_plan(library.scan(tmp_path / "Pictures"), index)
    assert (len(plan.add), len(plan.replace), plan.unchanged, len(plan.describe)) == (
        0,
        0,
        NUMBER + 1,
        NUMBER + 1,
    )
    assert "date, camera, size and place are read for 4 of the unchanged" in str(plan)
    vectors = torch.cat([images for _, images, _ in index.embeddings()])
    (tmp_path / "Pictures" / "0.png").write_bytes((tmp_path / "Pictures" / "0.png").read_bytes()[:60])
    os.utime(tmp_path / "Pictures" / "0.png", ns=(1, 1))  # damaged since, but that is another matter
    done = index_again(library, tmp_path)
    assert not library.towers.extractor.backbone.calls
    assert (done.added, done.changed, done.removed, done.described) == (0, 0, 1, NUMBER)
    assert "date, camera, size and place were read for 3 of the unchanged" in str(done)
    index = Index.load(index.path)
    assert facts_of(index, one) == {**FACTS, "camera": "my first one"}
    assert index.get(str(one)).captions == ("a dog",)
    assert facts_of(index, tmp_path / "Pictures" / "1.png") == {"width": 40, "height": 30}
    after = torch.cat([images for _, images, _ in index.embeddings()])
    assert {tuple(row) for row in after.tolist()} <= {tuple(row) for row in vectors.tolist()}
    assert index_again(library, tmp_path).described == 0
