"""The service on an index in Milvus: the same answers, and 503 while Milvus is away."""

import time

import pytest
from picture_cases import encoded, photo
from tiny import make_collection, small_model

from selhn.export import towers_of
from selhn.pictures import Library
from selhn.pictures.named_folders import name_folders
from selhn.search import Index
from selhn.serve.service import Service


@pytest.fixture
def remote(tmp_path):
    pytest.importorskip("pymilvus", reason="an index in Milvus needs the extra milvus")
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    (tmp_path / "remote").mkdir()
    return make_collection(tmp_path / "remote", str(tmp_path / "pictures.db"))


@pytest.fixture
def both(collection, remote, client_of):
    return client_of(Service(collection, writable=True)), client_of(Service(remote, writable=True))


def told(answer, *, scores=True):
    """An answer without the folder of its collection."""
    assert answer.status_code == 200, answer.text
    rows = answer.json().get("answers") or answer.json().get("items")
    files = [(row["id"].rpartition("/")[2], row["captions"], row["picture"]) for row in rows]
    return (files, [pytest.approx(row["score"], abs=1e-5) for row in rows]) if scores else files


@pytest.mark.parametrize(
    "asked",
    [
        {"text": "a red dog in the snow"},
        {"text": "a red dog", "where": "colour = red"},
        {"text": "a ball", "where": 'colour != "blue"', "k": "3"},
        {"text": "a house", "find": "text"},
    ],
)
def test_the_same_answers(both, asked):
    exact, milvus = (told(client.get("/api/v1/search", params=asked)) for client in both)
    assert milvus == exact


def test_folders_are_named_for_an_index_on_a_server_too(remote):
    index = remote.index
    again = Index.load(index.path, index.towers)
    assert again.store.born == index.store.born != ""
    assert Library(again).folders == ()
    name_folders(again, remote.folders)
    library = Library(again)
    assert library.folders == remote.folders
    assert all(map(library.file_of, again.records()))


def test_by_a_picture_and_by_an_item(both, collection, remote):
    content = encoded(photo(3, (60, 40)), "PNG")
    post = {"content": content, "headers": {"content-type": "image/png"}}
    exact, milvus = (told(client.post("/api/v1/search", **post)) for client in both)
    assert milvus == exact
    first, second = (str(one.folders[0] / "trip" / "05.png") for one in (collection, remote))
    exact = told(both[0].get("/api/v1/search", params={"like": first}))
    assert told(both[1].get("/api/v1/search", params={"like": second})) == exact
    assert both[1].get("/api/v1/search", params={"like": "nothing"}).status_code == 404


def test_items_fields_and_pictures(both):
    exact, milvus = (client.get("/api/v1/items", params={"where": "colour = red"}) for client in both)
    assert sorted(told(exact, scores=False)) == sorted(told(milvus, scores=False))
    assert milvus.json()["total"] == 3
    assert both[1].get("/api/v1/items", params={"first": 10}).json()["total"] == 12
    fields = [
        {
            name: {one["value"]: one["count"] for one in own}
            for name, own in client.get("/api/v1/about").json()["fields"].items()
        }
        for client in both
    ]
    assert fields[0]["colour"] == fields[1]["colour"]
    name = milvus.json()["items"][0]["id"]
    assert both[1].get("/api/v1/picture", params={"id": name}).headers["content-type"] == "image/jpeg"
    assert both[1].get("/api/v1/item", params={"id": name}).json()["metadata"]["colour"] == "red"
    assert "index_items 12" in both[1].get("/metrics").text


def test_writing(both, remote, tmp_path):
    client = both[1]
    post = {"content": encoded(photo(50, (60, 40)), "PNG"), "headers": {"content-type": "image/png"}}
    name = client.post("/api/v1/items", params={"caption": "a new dog"}, **post).json()["id"]
    assert client.get("/api/v1/item", params={"id": name}).json()["captions"] == ["a new dog"]
    changed = client.patch("/api/v1/item", params={"id": name}, json={"captions": ["an old dog"]})
    assert changed.json()["captions"] == ["an old dog"]
    reopened = Index.load(str(tmp_path / "pictures.db"), towers_of(small_model()))
    assert len(reopened) == 13
    assert client.delete("/api/v1/item", params={"id": name}).status_code == 204
    assert client.get("/api/v1/item", params={"id": name}).status_code == 404


def test_milvus_goes_away_and_comes_back(both, remote, monkeypatch):
    import pymilvus

    client, asked = both[1], {"text": "a red dog"}
    before = told(client.get("/api/v1/search", params=asked))

    def away(*given, **named):
        raise pymilvus.MilvusException(message="connection refused")

    with monkeypatch.context() as patch:
        for method in ("search", "query", "get", "query_iterator", "upsert", "delete"):
            patch.setattr(remote.index.store.rows._client, method, away)
        for path in ("/api/v1/search", "/api/v1/items", "/api/v1/about"):
            answer = client.get(path, params=asked if path.endswith("search") else {})
            assert answer.status_code == 503, path
            assert "No data was lost" in answer.json()["error"]
            assert answer.headers["retry-after"] == "5"
        post = {"content": encoded(photo(51, (60, 40)), "PNG"), "headers": {"content-type": "image/png"}}
        assert client.post("/api/v1/items", **post).status_code == 503
        assert not list(remote.folders[0].glob("uploads/*")), "no file without an item"
        assert client.get("/api/v1/health").status_code == 200
        assert "index_items" not in client.get("/metrics").text
    assert told(client.get("/api/v1/search", params=asked)) == before


def test_a_server_that_is_killed_and_started_again(milvus_server, tmp_path, client_of):
    uri, start = milvus_server
    process = start()
    client = client_of(Service(make_collection(tmp_path, uri)))
    asked = {"like": client.get("/api/v1/items").json()["items"][0]["id"]}
    before = told(client.get("/api/v1/search", params=asked))
    process.kill()
    process.wait()
    away = client.get("/api/v1/search", params=asked)
    assert away.status_code == 503
    assert "is not responding" in away.json()["error"]
    start()
    for _ in range(300):
        if client.get("/api/v1/search", params=asked).status_code == 200:
            break
        time.sleep(0.1)
    assert told(client.get("/api/v1/search", params=asked)) == before
