"""Pictures that are added, changed and deleted through a library, as the service does it."""

import os
from pathlib import Path

import pytest
import torch
from picture_cases import TinyBackbone, encoded, huge_png, photo

from selhn.base.errors import SelhnError
from selhn.models import create_model
from selhn.pictures import Extractor, Library, index_pictures
from selhn.text import Vocabulary

NUMBER = 3


@pytest.fixture
def library(tmp_path, monkeypatch):
    extractor = Extractor(TinyBackbone())
    monkeypatch.setattr("selhn.pictures.library.load_extractor", lambda name, device="cpu": extractor)
    (tmp_path / "Pictures").mkdir()
    for number in range(NUMBER):
        (tmp_path / "Pictures" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    torch.manual_seed(0)
    words = Vocabulary.build(["a red dog", "a blue dog", "a grey dog"], 1)
    model = create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()
    path, cache = tmp_path / "pictures.index", tmp_path / "cache"
    index_pictures(tmp_path / "Pictures", path, model=model, extractor="tiny", quiet=True, cache=cache)
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
    library.extractor.backbone.calls.clear()
    again = index_pictures(tmp_path / "Pictures", library.index.path, quiet=True, cache=tmp_path / "cache")
    assert (again.added, again.changed, again.removed) == (0, 0, 0)
    assert not library.extractor.backbone.calls
    assert again.index.get(name).metadata["stars"] == 5


def test_uploads_that_would_leave_the_folder(library, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "Pictures" / "uploads").symlink_to(tmp_path / "outside")
    with pytest.raises(SelhnError, match="is a link to another folder"):
        library.add(encoded(photo(1)), 10**6, [], {})
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("content", [b"", b"no picture", huge_png()])
def test_what_is_no_picture_is_kept_nowhere(library, tmp_path, content):
    with pytest.raises(SelhnError, match="the picture"):
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
    left = uploads / ".1234.jpg.partial"
    left.write_bytes(content[:50])
    assert library.add(content) == str(whole)
    assert whole.read_bytes() == content
    assert left.exists(), "somebody may be writing it"
    os.utime(left, (1, 1))
    library.add(content)
    assert not left.exists()
