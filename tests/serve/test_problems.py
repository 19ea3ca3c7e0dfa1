"""Each kind of error has its status; a bug is a 500 that says nothing of itself, and a traceback in the log."""

import httpx
import pytest
import torch
from tiny import WORDS

from selhn.base import errors
from selhn.base.errors import Damaged, Locked, MissingExtra, NotFound, SelhnError
from selhn.serve.app import create_app
from selhn.serve.problems import STATUSES
from selhn.serve.service import Service


@pytest.mark.parametrize(
    ("wrong", "status", "is_logged"),
    [
        (SelhnError("k is 0: ask for at least 1"), 400, False),
        (NotFound("there is no item 'x'"), 404, False),
        (Locked("process 7 is writing"), 409, False),
        (Damaged("vectors hold NaN: restore a copy"), 500, True),
        (MissingExtra("pip install 'selhn[search]'"), 501, True),
        (ConnectionError("Milvus does not answer"), 503, True),
    ],
)
def test_each_kind_has_its_status(client, collection, monkeypatch, caplog, wrong, status, is_logged):
    def fails(*arguments, **settings):
        raise wrong

    monkeypatch.setattr(type(collection.index), "search_many", fails)
    monkeypatch.setattr(type(collection.index), "records", fails)
    for path in (f"/api/v1/search?text={WORDS[0]}", "/api/v1/items"):
        answer = client.get(path)
        assert answer.status_code == status
        assert answer.json() == {"error": str(wrong)}
    assert (str(wrong) in caplog.text) is is_logged


@pytest.mark.parametrize("instead", ["nothing", "folder", "link", "loop"])
def test_a_picture_that_goes_away_while_it_is_asked_for(client, collection, instead, monkeypatch):
    """Between finding its file and reading it."""
    name = collection.index.ids()[0]
    path = collection.library.picture(name)
    other = collection.library.picture(collection.index.ids()[1])
    monkeypatch.setattr(type(collection.library), "picture", lambda self, name: path)
    path.unlink()
    if instead == "folder":
        path.mkdir()
    elif instead != "nothing":
        path.symlink_to(other if instead == "link" else path)
    for route in ("picture", "look"):
        assert client.get(f"/api/v1/{route}", params={"id": name, "text": "dog"}).status_code == 404


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_an_item_that_goes_away_while_it_is_asked_for(client, collection, method, monkeypatch):
    """Between looking it up and searching with it, showing it, changing it or deleting it."""
    name = collection.index.ids()[0]
    found = collection.library.picture(name)
    collection.index.delete([name])
    monkeypatch.setattr(type(collection.library), "picture", lambda self, name: found)
    found.unlink()
    json = {"json": {"captions": ["a dog"]}} if method == "PATCH" else {}
    assert client.request(method, "/api/v1/item", params={"id": name}, **json).status_code == 404
    monkeypatch.setattr(type(collection.index), "get", lambda self, name: None)
    assert client.get("/api/v1/search", params={"like": name}).status_code == 404


def test_every_class_is_mapped():
    ours = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.SelhnError)
    }
    assert ours == set(STATUSES)


def test_vectors_that_are_not_what_was_written_are_not_the_fault_of_the_client(client, collection):
    (vectors,) = collection.index.path.rglob("images.npy")
    content = bytearray(vectors.read_bytes())
    content[-32:] = b"\xff" * 32  # NaN
    vectors.write_bytes(content)
    assert client.get("/api/v1/search", params={"text": WORDS[0]}).status_code == 500


def divides_by_zero(*arguments, **settings):
    return 1 // 0


def calls_torch_wrongly(*arguments, **settings):
    return torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("bug", "kind"), [(divides_by_zero, ZeroDivisionError), (calls_torch_wrongly, ValueError)]
)
@pytest.mark.parametrize("path", [f"/api/v1/search?text={WORDS[0]}", "/api/v1/item?id=x", "/api/v1/about"])
def test_a_bug_is_a_500_that_says_nothing_of_itself(collection, monkeypatch, bug, kind, path):
    from starlette.testclient import TestClient

    for method in ("search_many", "get", "count"):
        monkeypatch.setattr(type(collection.index), method, bug)
    service = Service(collection)
    app = create_app(service)
    with pytest.raises(kind):
        TestClient(app, base_url="http://localhost").get(path)
    answer = TestClient(app, base_url="http://localhost", raise_server_exceptions=False).get(path)
    assert answer.status_code == 500
    assert "bug" in answer.json()["error"]
    assert "zero" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert {status for _, _, status in service.metrics.requests} == {500}


def test_the_log_of_a_server_has_the_traceback_of_a_bug(start_server):
    server = start_server(bug=1)
    answer = httpx.get(f"{server.address}/api/v1/about")
    assert answer.status_code == 500
    assert "bug" in answer.json()["error"]
    assert httpx.get(f"{server.address}/api/v1/health").status_code == 200
    assert "Traceback" in server.said()
    assert "ZeroDivisionError" in server.said()
