"""`selhn photos` as a person starts and stops it, with small models."""

import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from picture_cases import TinyBackbone, encoded, photo, stand_in
from programs import Program
from tiny import small_model

from selhn.base.errors import Linked, Locked, MissingExtra, NotFound, SelhnError
from selhn.export import towers_of
from selhn.pictures import Extractor
from selhn.pictures.upkeep import bring_up_to_date
from selhn.search import Index
from selhn.serve import photos as photos_module
from selhn.serve.access import Token, redirect
from selhn.serve.keeper import Keeper
from selhn.serve.photos import PAGE_FILE, Page, Running, photos
from selhn.serve.start import listen

HERE = Path(__file__).parent
NUMBER = 50


class Photos:
    """The command in a process of its own, and its page."""

    def __init__(self, folder, *words, **settings):
        paths = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parents[1] / "src")))
        self.own = own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COMPUTED": str(folder / "computed")}
        own |= {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_DATA_HOME": str(folder / "share"),
            "XDG_STATE_HOME": str(folder / "state"),
            "HOME": str(folder),
        }
        own |= {"BROWSER": f"{sys.executable} {folder / 'browser.py'} %s"}
        (folder / "browser.py").write_text(
            "import sys, urllib.request as r; opened = r.urlopen(sys.argv[1]).read().decode()\n"
            "open(__file__ + '.asked', 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            "open(__file__ + '.opened', 'a').write(opened)"
        )
        self.child = Program(HERE / "tiny_photos.py", "photos", *words, env={**os.environ, **own, **settings})
        line = self.child.stdout.readline()
        assert "http://" in line, self.child.said()
        self.link = next(word for word in line.split() if word.startswith("http"))
        self.address, _, token = self.link.partition("/#token=")
        assert len(token) == 32, "it is made at every start"
        self.headers = {"Authorization": f"Bearer {token}"}

    def get(self, path, **parameters):
        asked = httpx.get(
            f"{self.address}/api/v1/{path}", params=parameters, headers=self.headers, timeout=30
        )
        return asked.raise_for_status().json()

    def until(self, test, seconds=40):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            told = self.get("progress", files=True)
            if test(told):
                return told
            time.sleep(0.1)
        raise AssertionError(told)

    def stop(self, number=signal.SIGTERM):
        self.child.send_signal(number)
        return self.child.communicate(timeout=30)


def is_idle(told):
    return told["state"] == "idle"


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*words, **settings):
        started.append(Photos(tmp_path, *words, **settings))
        return started[-1]

    yield start
    for one in started:
        with one.child:
            pass


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "Pictures"
    folder.mkdir()
    for number in range(10, NUMBER + 10):
        (folder / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
        os.utime(folder / f"{number}.png", (1e9 + number, 1e9 + number))
    return folder


def test_from_nothing_to_the_page_and_again(start, pictures, tmp_path, monkeypatch, capsys):
    (pictures / "cut.png").write_bytes(encoded(photo(3), "PNG")[:50])
    first = start(SLOW="0.1")
    told = first.until(lambda told: told["items"] and told["state"] == "indexing")
    assert told["items"] < told["total"] == NUMBER + 1
    assert f"of {NUMBER + 1} pictures" in told["message"]
    assert first.get("items", number=1)["items"][0]["metadata"]["file"] == f"{NUMBER + 9}.png", "newest first"
    assert first.get("search", text="a red ball")["answers"], "what is there can be searched"
    first.child.kill()
    first.child.communicate()
    index = tmp_path / "share" / "selhn" / "pictures.index"
    before, was_computed = (
        len(Index.load(index, towers_of(small_model()))),
        (tmp_path / "computed").stat().st_size,
    )
    assert 0 < before < NUMBER

    second = start(str(pictures))
    for name, value in second.own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(photos_module, "MODEL_PACKAGES", ())
    photos()
    assert f"running already: {second.link}" in capsys.readouterr().out
    with pytest.raises(Locked, match="stop it"):
        photos([tmp_path / "share"])
    told = second.until(is_idle)
    assert (told["items"], told["message"]) == (NUMBER, "")
    assert [one["file"] for one in told["files"]] == ["cut.png"]
    began = time.monotonic()
    said, wrong = second.stop()
    assert (second.child.returncode, wrong) == (0, "")
    assert time.monotonic() - began < 10, "3 s, if nobody else uses the machine"
    assert f"{NUMBER - before} pictures added, 0 changed, 0 removed, {before} unchanged; 1 left out" in said
    assert f"Kept on this machine:\n  index: {index} (" in said
    assert f"computed again: {tmp_path / 'cache' / 'selhn' / 'features'}" in said
    assert "thumbnails: in memory, 67 MB at the most" in said
    computed = (tmp_path / "computed").stat().st_size
    assert computed <= was_computed + NUMBER - before
    Index.load(index, towers_of(small_model())).check()

    backbone = TinyBackbone()
    stand_in(small_model, lambda: Extractor(backbone), monkeypatch)
    (again,) = bring_up_to_date(index, [pictures, tmp_path / "nowhere"])
    assert (again.plan.unchanged, again.added, backbone.calls) == (NUMBER, 0, []), "nothing is computed again"
    asked = (tmp_path / "browser.py.asked").read_text()
    assert len(asked.split()) == 3
    assert "token" not in asked, "every user of the machine can read a command line"
    leads = re.findall('url=([^"]*)"', (tmp_path / "browser.py.opened").read_text())
    assert leads == [first.link, *[second.link] * 2]
    page, *again = asked.split()[1:]
    assert [page] == again
    assert not Path(page.removeprefix("file://")).parent.exists(), "it is removed with the service"


@pytest.mark.slow
def test_another_version_of_the_model(start, pictures, tmp_path):
    """The index is made again while it is served; killed in the middle, it has what was there, and continues."""
    index = tmp_path / "share" / "selhn" / "pictures.index"
    first = start(str(pictures), "--writable")
    first.until(is_idle)
    name = first.get("items")["items"][0]["id"]
    loved = httpx.patch(
        f"{first.address}/api/v1/album",
        params={"name": "Favourites"},
        json={"add": [name]},
        headers=first.headers,
    )
    assert loved.json() == {"name": "Favourites", "ids": [name]}
    first.stop()
    shutil.rmtree(tmp_path / "cache")
    second = start("--no-browser", DIM="6", SLOW="0.2")
    second.until(lambda told: 0 < told["items"] < NUMBER)
    assert "was made by a former version of the model: it is made again" in second.child.stdout.readline()
    second.stop(signal.SIGKILL)
    assert len(Index.load(index.with_name("pictures.index.former"), towers_of(small_model()))) == NUMBER
    third = start("--no-browser", DIM="6")
    third.until(is_idle)
    assert third.get("albums") == [{"name": "Favourites", "ids": [name]}]
    assert third.get("about")["items"] == NUMBER
    assert not index.with_name("pictures.index.former").exists()


def test_the_page_of_a_killed_process_is_not_shown(tmp_path):
    page = Page(tmp_path / "pictures.index")
    running = Running("http://127.0.0.1:8000", (str(tmp_path),), False, Token("a long secret"))
    with page:
        page.write(running)
        left = (page.folder / PAGE_FILE).read_bytes()
        page.show_other([tmp_path / "trip"], browser=False)  # below a folder that is kept
        with pytest.raises(Locked, match="without --writable"):
            page.show_other([tmp_path], browser=False, writable=True)
        page.write(replace(running, writable=True))
        page.show_other([tmp_path], browser=False, writable=True)
    (page.folder / PAGE_FILE).write_bytes(left)
    with Page(tmp_path / "pictures.index"), pytest.raises(Locked, match="being started"):
        Running.read(page.folder / PAGE_FILE)


def test_nobody_else_can_read_the_token(tmp_path):
    page = Page(tmp_path / "pictures.index")
    with page, redirect("http://127.0.0.1:8000/#token=a%22b") as address:
        page.write(Running("http://127.0.0.1:8000", (), False, Token("a long secret"), address))
        opened = Path(address.removeprefix("file://"))
        for file in (page.folder / PAGE_FILE, opened):
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.parent.stat().st_mode & 0o777 == 0o700
        assert 'url=http://127.0.0.1:8000/#token=a%22b"' in opened.read_text()
    assert not opened.exists()
    (tmp_path / ".other.index.page").symlink_to(tmp_path)
    with pytest.raises(Linked), Page(tmp_path / "other.index"):
        pass


def test_what_was_asked_for_is_wrong(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(photos_module, "MODEL_PACKAGES", ())
    (tmp_path / "empty").mkdir()
    for wrong, kind, words in [
        ("typo", NotFound, "there is no folder"),
        ("Pictures/10.png", SelhnError, "is a file"),
        ("empty", NotFound, "holds no pictures"),
    ]:
        with pytest.raises(kind, match=words):
            photos([tmp_path / wrong], tmp_path / "index")
    assert not (tmp_path / "index").exists()
    monkeypatch.setattr(photos_module, "MODEL_PACKAGES", ("no_model", "no_weights"))
    monkeypatch.setattr(photos_module.start, "PACKAGES", ("no_service",))
    with pytest.raises(MissingExtra, match="needs no_service, no_model and no_weights: pip"):
        photos([pictures])


def test_the_next_port_that_is_free(monkeypatch):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(photos_module, "FIRST_PORT", port)
        with photos_module._listen("127.0.0.1", None) as found:
            assert found.getsockname()[1] != port
        with pytest.raises(SelhnError):
            photos_module._listen("127.0.0.1", port)


def test_a_machine_without_a_screen(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(photos_module.sys, "platform", "linux")
    assert not photos_module.open_browser("http://127.0.0.1:8000")


def test_another_model(pictures, tmp_path, monkeypatch):
    """A new index is made with it, by both processes; it must be that of an index that exists."""
    small_model(dim=16).save(tmp_path / "model")
    small_model(dim=4).save(tmp_path / "other")
    asked = []
    monkeypatch.setattr(photos_module, "MODEL_PACKAGES", ("no_model",))
    monkeypatch.setattr("selhn.export.matcher_towers.load_extractor", lambda *_: Extractor(TinyBackbone()))
    monkeypatch.setattr("selhn.serve.indexer.Indexer", lambda *given: asked.append(given) or Mock())
    monkeypatch.setattr(
        "selhn.serve.keeper.Keeper", lambda *given, **named: asked.append(named) or Mock(spec=Keeper)
    )
    monkeypatch.setattr(photos_module.start, "answer", lambda service, *_: asked.append(service))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos([pictures], tmp_path / "i", model=tmp_path / "model", browser=False)
    process, keeper, service = asked
    assert (process[2], keeper["model"], service.models()[0].width) == (
        tmp_path / "model",
        tmp_path / "model",
        16,
    )
    (done,) = bring_up_to_date(*process)
    assert done.added == NUMBER
    with pytest.raises(SelhnError, match="written by another model"):
        photos([pictures], tmp_path / "i", model=tmp_path / "other", browser=False)
