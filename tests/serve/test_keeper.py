"""What keeps an index up to date, with processes that only pretend to index."""

import os
import time

import indexing_cases
import pytest

from selhn.pictures.how_far import PROGRESS_FILE, HowFarFile
from selhn.serve import keeper as keeper_module
from selhn.serve.keeper import Keeper
from selhn.serve.service import Service


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Start a keeper of a folder with one picture; everything is looked at often."""
    for name, value in {
        "LOOK_EVERY": 0.05,
        "SHARE": 0,
        "QUIET": 0.05,
        "TRY_AGAIN": 0.05,
        "ENOUGH_SPACE": 0,
    }.items():
        monkeypatch.setattr(keeper_module, name, value)
    (tmp_path / "index").mkdir()
    (tmp_path / "Pictures").mkdir()
    (tmp_path / "Pictures" / "a.jpg").write_bytes(b"a")
    keepers, said = [], []

    def start(work, **settings):
        keepers.append(
            Keeper(tmp_path / "index", [tmp_path / "Pictures"], say=said.append, work=work, **settings)
        )
        return keepers[-1], said

    yield start
    for one in keepers:
        one.stop()


def until(test, seconds=30):
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_folder_is_watched(keep, tmp_path):
    folder, runs = tmp_path / "Pictures", tmp_path / "index" / "runs"
    keeper, said = keep(indexing_cases.count, watch=True)
    until(lambda: keeper.state == "idle")
    (folder / "notes.txt").write_text("not a picture")
    (folder / "b.jpg").write_bytes(b"b")
    until(lambda: runs.read_text() == "xx")
    until(lambda: keeper.state == "idle")
    folder.rename(tmp_path / "unplugged")
    until(lambda: keeper.state == "waiting")
    assert "its pictures stay in the index" in keeper.told()[2]
    (tmp_path / "unplugged").rename(folder)
    until(lambda: keeper.state == "idle")
    assert keeper.told()[2] == ""
    assert runs.read_text() == "xx", "it is the same as before"
    (folder / "b.jpg").write_bytes(b"other")
    until(lambda: runs.read_text() == "xxx")
    assert said[:2] == ["1 folders were read"] * 2
    assert len([line for line in said if "missing or empty" in line]) == 1


@pytest.mark.parametrize("work", ["crash", "bug"])
def test_the_process_may_crash(work, keep, collection, client_of, capfd):
    keeper, said = keep(getattr(indexing_cases, work))
    until(lambda: keeper.state == "idle")
    client = client_of(Service(collection, keeper=keeper))
    told = client.get("/api/v1/progress").json()
    assert told["message"].startswith("indexing stopped")
    assert (told["state"], told["items"]) == ("idle", 12)
    assert len(said) == 1
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (work == "bug"), "a bug keeps its traceback"
    assert client.get("/api/v1/search", params={"text": "a red dog"}).json()["answers"], "the service goes on"


def test_another_program_may_end_the_process(keep):
    keeper, _ = keep(indexing_cases.end)
    until(lambda: keeper.state == "idle")
    assert "SIGTERM, another program ended it" in keeper.told()[2]


def test_it_continues_when_there_is_space(keep, tmp_path):
    (tmp_path / "index" / "full").touch()
    keeper, said = keep(indexing_cases.full)
    until(lambda: keeper.state == "waiting")
    assert "indexing waits until 64 MiB are free" in keeper.told()[2]
    (tmp_path / "index" / "full").unlink()
    until(lambda: keeper.state == "idle")
    assert said[-1] == "1 folders were read"


def test_other_processes_are_seen(collection, client):
    """`selhn index` in another terminal, while this index is served."""
    assert client.get("/api/v1/progress").json() == {
        "state": "idle", "done": 0, "total": 0, "seconds_left": None, "message": "",
        "items": 12, "left_out": 0, "files": None,
    }  # fmt: skip
    with HowFarFile(collection.index.path, 10, 90):
        told = client.get("/api/v1/progress").json()
    assert (told["state"], told["done"], told["total"]) == ("indexing", 10, 100)
    assert told["message"] == "10 of 100 pictures"


def test_it_is_stopped_at_once(keep, tmp_path):
    keeper, said = keep(indexing_cases.forever)
    until((tmp_path / "index" / "begun").exists)
    (tmp_path / "index" / PROGRESS_FILE).touch()
    pid = keeper._indexer.pid
    keeper.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert said == []
    assert not (tmp_path / "index" / PROGRESS_FILE).exists()
