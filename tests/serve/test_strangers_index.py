"""An index that somebody sends, which names files of the one who opens it: none of them is opened, served or walked."""

import io
import os
import pty
import sys
from dataclasses import replace

import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo
from programs import run
from tiny import WORDS, small_model

from selhn.base.errors import NotFound, SelhnError
from selhn.export import towers_of
from selhn.pictures import Extractor, Library
from selhn.pictures.named_folders import name_folders, named_folders, offer_folders, require_folders
from selhn.pictures.plans import picture_facts
from selhn.search import Index, Item
from selhn.serve import photos as photos_module
from selhn.serve.collection import Collection
from selhn.serve.photos import photos
from selhn.serve.service import Service

SERVE = "selhn serve {index} {folders}"
TOKEN = {"authorization": "Bearer a long secret"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home of the one who opens the index: a key, a link to it, and private pictures."""
    home = tmp_path / "home" / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("a private key")
    (home / ".ssh" / "key.jpg").symlink_to(home / ".ssh" / "id_rsa")
    (home / "Private").mkdir()
    for number in range(4):
        (home / "Private" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    monkeypatch.setenv("HOME", str(home))
    for name in ("STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / f".{name.lower()}"))
    monkeypatch.setattr(photos_module, "MODEL_PACKAGES", ())
    monkeypatch.setattr("selhn.export.matcher_towers.load_extractor", lambda *_: Extractor(TinyBackbone()))
    return home


@pytest.fixture
def strangers(home, tmp_path):
    """The index; size and time of the files are as they are, should the stranger know them."""
    about = {"extractor": "tiny", "features": Extractor(TinyBackbone()).identity}
    index = Index.create(towers_of(small_model()), tmp_path / "sent.index", about=about)
    names = [home / ".ssh" / "id_rsa", home / ".ssh" / "key.jpg", *sorted((home / "Private").glob("*"))[:2]]
    index.add(
        Item(str(path), torch.rand(3, 4), None, (WORDS[number],), picture_facts(path, path.parent))
        for number, path in enumerate(names)
    )
    return index


def ids(index):
    return [record.id for record in index.records()]


@pytest.mark.parametrize("token", [None, "a long secret"])
@pytest.mark.parametrize("writable", [False, True])
def test_nothing_that_it_names_is_served(strangers, home, client_of, token, writable):
    service = client_of(Service(Collection(Library.open(strangers.path)), writable=writable), token=token)
    before = sorted(path.name for path in (home / "Private").iterdir())
    for route in ("original", "picture", "look"):
        for name in ids(strangers):
            answer = service.get(f"/api/v1/{route}", params={"id": name, "text": "a dog"}, headers=TOKEN)
            assert answer.status_code == 404
            assert "--folder" in answer.json()["error"] or route == "look"
    found = service.get("/api/v1/search", params={"text": "a dog"}, headers=TOKEN).json()["answers"]
    assert len(found) == 4, "it can be searched"
    assert not any(one["picture"] for one in found)
    assert not service.get("/api/v1/about", headers=TOKEN).json()["can"]["show_pictures"]
    picture = encoded(photo(9), "PNG")
    added = service.post("/api/v1/items", content=picture, headers={**TOKEN, "content-type": "image/png"})
    assert added.status_code == (400 if writable else 403)
    for name in ids(strangers):
        service.delete("/api/v1/item", params={"id": name}, headers=TOKEN)
    assert sorted(path.name for path in (home / "Private").iterdir()) == before, (
        "no uploads/, nothing deleted"
    )
    assert (home / ".ssh" / "id_rsa").read_text() == "a private key"


def test_files_outside_are_not_even_looked_up(strangers, home, monkeypatch):
    """A path may be on a disk that is mounted when it is looked up, or on a server that then learns who we are."""
    library = Library.open(strangers.path)
    name_folders(library.index, [home / "Pictures"])
    records, looked_up = list(strangers.records()), []
    for function in ("stat", "lstat", "readlink", "open"):
        own = getattr(os, function)
        monkeypatch.setattr(
            os, function, lambda path, *a, own=own, **n: looked_up.append(str(path)) or own(path, *a, **n)
        )
    assert not any(map(library.file_of, records))
    assert not [path for path in looked_up if ".ssh" in path or "Private" in path]


def test_notebooks_and_sheets_show_nothing_of_it(strangers):
    hits = Library.open(strangers.path).index.search("a dog")
    assert "<img" not in hits._repr_html_()


@pytest.mark.parametrize("named", ["", "photos"])
def test_selhn_photos_neither_walks_nor_indexes_what_it_names(
    strangers, home, tmp_path, monkeypatch, capsys, named
):
    served, kept = [], []
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(encoded(photo(9), "PNG"))
    monkeypatch.setattr("selhn.serve.keeper.Keeper._keep", lambda keeper: kept.extend(keeper.folders))
    monkeypatch.setattr("selhn.serve.indexer.Indexer.__init__", lambda self, *given: kept.extend(given[1]))
    monkeypatch.setattr("selhn.serve.indexer.Indexer.end", lambda self: None)
    monkeypatch.setattr(photos_module.start, "answer", lambda service, *_: served.append(service))
    photos([tmp_path / named] if named else [], strangers.path, browser=False, writable=True)
    assert set(kept) == {tmp_path / "photos"} if named else not kept
    (service,) = served
    assert service.collection.folders == ((tmp_path / "photos",) if named else ())
    assert f"selhn photos {home}/.ssh {home}/Private --index" in capsys.readouterr().err


def test_the_command_to_allow_it(strangers, home, tmp_path, capsys):
    """On a terminal one question, elsewhere one sentence; what was allowed stays so, for this index only."""
    offer_folders(strangers, SERVE)
    assert (
        f"selhn serve {strangers.path} --folder {home}/.ssh --folder {home}/Private"
        in capsys.readouterr().err
    )
    assert named_folders(strangers) == ()
    for answer, allowed in [("", ()), ("n", ()), ("y", (home / ".ssh", home / "Private"))]:
        offer_folders(strangers, SERVE, ask=lambda words, answer=answer: answer)
        assert named_folders(strangers) == allowed
    library = Library.open(strangers.path)
    served = [library.file_of(record) for record in strangers.records()]
    assert served == [None, None, home / "Private" / "0.png", home / "Private" / "1.png"], "only pictures"
    offer_folders(strangers, SERVE, ask=lambda words: pytest.fail("it was asked already"))
    moved = strangers.path.rename(tmp_path / "moved.index")
    assert named_folders(Index.load(moved)) == ()
    Index.create(towers_of(small_model()), strangers.path, about=strangers.about)
    assert named_folders(Index.load(strangers.path)) == (), "another index at the same path"


def test_a_link_in_place_of_a_folder_is_not_allowed_by_a_yes(strangers, home, tmp_path):
    (tmp_path / "sent").symlink_to(home / "Documents")
    (home / "Documents").mkdir()
    facts = {"folder": ".", "file": "x.png"}
    strangers.add([Item(str(tmp_path / "sent" / "x.png"), torch.rand(3, 4), metadata=facts)])
    offer_folders(strangers, SERVE, ask=lambda words: "y")
    assert named_folders(strangers) == (home / ".ssh", home / "Private")


@pytest.mark.parametrize(
    "name", ["a\0/b.png", "a" * 5000 + ".png", "loop.png", "../Private/0.png", "dir.png", "pipe.png"]
)
def test_names_that_no_file_has(strangers, home, name):
    (home / "Pictures" / "dir.png").mkdir(parents=True)
    (home / "Pictures" / "loop.png").symlink_to(home / "Pictures" / "loop.png")
    os.mkfifo(home / "Pictures" / "a pipe")
    (home / "Pictures" / "pipe.png").symlink_to(home / "Pictures" / "a pipe")
    name_folders(strangers, [home / "Pictures"])
    record = replace(strangers.get(str(home / "Private" / "0.png")), id=f"{home}/Pictures/{name}")
    assert Library.open(strangers.path).file_of(record) is None


def test_names_that_would_trick_a_terminal_are_not_offered(strangers, tmp_path, capsys):
    evil = tmp_path / "a\x1b[2J\nselhn: all is well"
    facts = {"folder": ".", "file": "x.png"}
    strangers.add([Item(str(evil / "x.png"), torch.rand(3, 4), metadata=facts)])
    asked = []
    offer_folders(strangers, SERVE)
    offer_folders(strangers, SERVE, ask=lambda words: asked.append(words) or "y")
    assert not {"\x1b", "\r"} & set(capsys.readouterr().err + "".join(asked))
    assert evil not in named_folders(strangers)


def test_size_and_time_must_be_as_indexed(strangers, home):
    name_folders(strangers, [home / "Private"])
    library, (record, other) = Library.open(strangers.path), list(strangers.records())[2:]
    assert None not in map(library.file_of, (record, other))
    os.utime(home / "Private" / "0.png", (1, 1))
    (home / "Private" / "1.png").write_bytes(b"longer than before" * 1000)
    assert library.file_of(record) is library.file_of(other) is None
    strangers.add([Item(str(home / "Private" / "3.png"), torch.rand(3, 4))])
    assert library.file_of(strangers.get(str(home / "Private" / "3.png"))) is None, (
        "unknown ones are not enough"
    )


def test_the_record_of_what_was_named_is_private(strangers, home):
    name_folders(strangers, [home / "Private"])
    state = home / ".state" / "selhn"
    assert state.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}["folders.json"] == 0o600


def test_a_record_that_cannot_be_read_or_written(strangers, home, monkeypatch):
    state = home / ".state" / "selhn" / "folders.json"
    for content in ("{", '{"a": 1}', '{"a": {"b": "c"}}', '{"a": {"b": [1]}}'):
        name_folders(strangers, [home / content[:1]])
        state.write_text(content)
        with pytest.raises(SelhnError, match="folders.json"):
            named_folders(strangers)
        state.unlink()
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    with pytest.raises(SelhnError, match="set XDG_STATE_HOME"):
        name_folders(strangers, [home])


@pytest.mark.parametrize(("typed", "allowed"), [(b"y\n", 2), (b"n\n", 0), (b"\n", 0), (b"\x04", 0)])
def test_the_question_on_a_terminal(strangers, monkeypatch, typed, allowed):
    ours, theirs = pty.openpty()
    with open(theirs, "r+b", buffering=0) as raw, open(ours, "r+b", buffering=0) as keyboard:
        keyboard.write(typed)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        offer_folders(strangers, SERVE)
    assert len(named_folders(strangers)) == allowed


def test_folders_are_for_an_index_of_pictures(strangers, home, tmp_path):
    for settings in ({"examples": True}, {"runs": tmp_path}):
        with pytest.raises(SelhnError, match="leave --folder out"):
            Service.open(folders=[home], **settings)
    with pytest.raises(NotFound, match="--folder"):
        require_folders([home / "none"])
    service = Service.open(strangers.path, folders=[home / "Private"])
    assert service.collection.folders == (home / "Private",)


def test_the_command_line_says_it(strangers, home, tmp_path):
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": paths}
    sheet = tmp_path / "sheet.png"
    said = run("-m", "selhn", "search", "--index", strangers.path, "a dog", "--sheet", sheet, env=env)
    assert said.returncode == 0, said.stderr
    assert f"--folder {home}/.ssh --folder {home}/Private" in said.stderr
    assert "Traceback" not in said.stderr
