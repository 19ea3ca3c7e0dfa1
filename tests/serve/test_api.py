"""Every route, asked well and badly."""

import asyncio
import io
import json
import threading
import time

import pytest
import torch
from picture_cases import encoded, huge_png, photo
from PIL import Image
from starlette.requests import ClientDisconnect, Request
from tiny import NUMBER, WORDS

from selhn.base.errors import Locked
from selhn.pictures import Library
from selhn.search import Index, Item
from selhn.serve.item_routes import while_connected
from selhn.serve.limits import Limits
from selhn.serve.service import Service

JPEG = {"content-type": "image/jpeg"}


def reason(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert list(content) == ["error"]
    return content["error"]


def test_by_text(client, collection):
    answers = client.get("/api/v1/search", params={"text": WORDS[0], "k": 3}).json()["answers"]
    hits = collection.index.search(WORDS[0], k=3)
    assert [one["id"] for one in answers] == [hit.id for hit in hits]
    assert [one["score"] for one in answers] == pytest.approx([hit.score for hit in hits], abs=1e-6)
    assert answers[0]["captions"] == list(hits[0].captions)
    assert answers[0]["metadata"] == dict(hits[0].metadata)
    assert answers[0]["picture"] is True
    assert answers[0]["kind"] == "image"


def test_by_item_by_picture_and_by_several(client, collection):
    first = collection.index.ids()[0]
    like = client.get("/api/v1/search", params={"like": first}).json()["answers"]
    assert len(like) == NUMBER - 1
    assert first not in {one["id"] for one in like}
    content = collection.library.picture(first).read_bytes()
    found = client.post("/api/v1/search?k=1", content=content, headers={"content-type": "image/png"}).json()[
        "answers"
    ]
    assert found[0]["id"] == first
    asked = {"text": WORDS[3], "like": first, "k": 5}
    mixed = client.get("/api/v1/search", params=asked).json()["answers"]
    expected = collection.index.search(text=WORDS[3], like=first, weights={"text": 2}, k=5)
    assert [one["id"] for one in mixed] == [hit.id for hit in expected], (
        "a sentence counts twice beside a picture"
    )
    mixed = client.get("/api/v1/search", params={**asked, "text_weight": 1, "like_weight": -3}).json()[
        "answers"
    ]
    expected = collection.index.search(text=WORDS[3], like=first, weights={"text": 1, "like": -3}, k=5)
    assert [one["id"] for one in mixed] == [hit.id for hit in expected]
    both = client.post(f"/api/v1/search?text={WORDS[3]}", content=content, headers=JPEG).json()["answers"]
    assert len(both) == NUMBER


def test_captions_and_filters(client):
    found = client.get("/api/v1/search", params={"text": WORDS[0], "find": "text", "k": 4}).json()["answers"]
    assert found[0]["text"] in WORDS
    assert found[0]["kind"] == "text"
    where = 'colour = "red" and folder = "."'
    found = client.get("/api/v1/search", params={"text": WORDS[0], "where": where}).json()["answers"]
    assert {one["metadata"]["colour"] for one in found} == {"red"}


@pytest.mark.parametrize(
    ("parameters", "status", "sentence"),
    [
        ({}, 400, "the query is empty"),
        ({"text": " "}, 400, "the query is empty"),
        ({"text": "qwertz"}, 400, "knows no word"),
        ({"text": "dog " * 300}, 400, "1,200 characters: at most 1,000"),
        ({"text": "dog", "k": 201}, 400, "k is 201: at most 200"),
        ({"text": "dog", "k": 0}, 422, "k: "),
        ({"text": "dog", "k": "many"}, 422, "k: "),
        ({"text": "dog", "find": "video"}, 422, "find: "),
        ({"text": "dog", "where": "colour ="}, 400, "the filter"),
        ({"text": "dog", "where": "x" * 1001}, 400, "the filter has"),
        ({"text": "dog", "wher": "a"}, 422, "wher: "),
        ({"text": "dog", "text_weight": "nan"}, 400, "weights"),
        ({"text": "dog", "like_weight": 1}, 400, "no such part"),
        ({"like": "nothing"}, 404, "there is no item 'nothing'"),
        ({"like": "../../etc/passwd"}, 404, "there is no item"),
    ],
)
def test_questions_that_cannot_be_answered(client, parameters, status, sentence):
    assert sentence in reason(client.get("/api/v1/search", params=parameters), status)


@pytest.mark.parametrize(
    ("content", "kind", "status", "sentence"),
    [
        (b"no picture", "image/jpeg", 400, "cannot be read as a picture"),
        (b"", "image/jpeg", 400, "is empty"),
        (huge_png(), "image/png", 400, "at most 40,000,000 pixels"),
        (b"<svg/>", "image/svg+xml", 400, "cannot be read as a picture"),
        (encoded(photo(1)), "text/plain", 415, "Content-Type: image/jpeg"),
        (encoded(photo(1)), "multipart/form-data; boundary=x", 415, "Content-Type: image/jpeg"),
        (encoded(photo(1)), "", 415, "content type none"),
    ],
)
def test_bodies_that_are_no_picture(client, content, kind, status, sentence):
    for path in ("/api/v1/search", "/api/v1/items"):
        answer = client.post(path, content=content, headers={"content-type": kind} if kind else {})
        assert sentence in reason(answer, status)
    assert client.get("/api/v1/health").json()["status"] == "ok"


def test_items(client, collection):
    page = client.get("/api/v1/items", params={"first": 10, "number": 5}).json()
    assert page["total"] == NUMBER
    assert [one["id"] for one in page["items"]] == collection.index.ids()[10:]
    one = client.get("/api/v1/item", params={"id": collection.index.ids()[0]}).json()
    assert one["captions"] == [WORDS[0], "number 0"]
    assert "there is no item" in reason(client.get("/api/v1/item", params={"id": "x"}), 404)
    assert "id: " in reason(client.get("/api/v1/item"), 422)


def test_pictures(client, collection):
    asked = {"id": collection.index.ids()[0], "size": 160}
    answer = client.get("/api/v1/picture", params=asked)
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"].startswith("private")
    assert Image.open(io.BytesIO(answer.content)).size == (60, 40)
    again = client.get("/api/v1/picture", params=asked, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    assert "choose 160" in reason(client.get("/api/v1/picture", params={**asked, "size": 5}), 400)


def test_originals(client, collection):
    path = collection.library.picture(collection.index.ids()[0])
    answer = client.get("/api/v1/original", params={"id": str(path)})
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == "inline; filename*=UTF-8''00.png"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    answer = client.get("/api/v1/original", params={"id": str(path), "download": True})
    assert answer.headers["content-disposition"].startswith("attachment;")


def test_an_original_that_browsers_cannot_show_is_a_download(client, collection):
    """Whatever the file contains: its name alone must not make a browser show it as a page."""
    for name in ("page.tiff", "page.html"):
        path = collection.library.folders[0] / name
        path.write_text("<script>alert(1)</script>")
        collection.index.add([Item(str(path), torch.rand(3, 4), None, (), {})])
        answer = client.get("/api/v1/original", params={"id": str(path)})
        if name == "page.html":
            assert answer.status_code == 404, "not the name of a picture or a video"
        else:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"].startswith("attachment;")


def test_albums(client, collection, client_of):
    ids = collection.index.ids()
    changed = client.patch("/api/v1/album", params={"name": "Trip"}, json={"add": ids[:3]})
    assert changed.json() == {"name": "Trip", "ids": ids[:3]}
    asked = {"where": 'album = "Trip"'}
    first, every = (client.get("/api/v1/items", params=own).json() for own in (asked, {}))
    assert first["total"] == 3
    assert [
        hit["id"] in ids[:3]
        for hit in client.get("/api/v1/search", params={"text": "a red ball", **asked}).json()["answers"]
    ]
    client.patch("/api/v1/album", params={"name": "Trip"}, json={"remove": ids[:1], "name": "Sea"})
    asked = {"where": 'album = "Sea"'}
    assert client.get("/api/v1/albums").json() == [{"name": "Sea", "ids": ids[1:3]}]
    then = client.get("/api/v1/timeline", params=asked).json()
    assert then["total"] == 2
    client.patch("/api/v1/album", params={"name": "Sea"}, json={"add": ids[:1]})
    now = client.get("/api/v1/timeline", params=asked).json()
    assert now["total"] == 3
    assert now["version"] != then["version"], "positions in an album change with it"
    assert client.get("/api/v1/items").json()["version"] == every["version"], (
        "and those of all pictures do not"
    )
    assert "choose from Sea" in reason(client.get("/api/v1/items", params={"where": "album = Tripp"}), 404)
    assert "no item" in reason(
        client.patch("/api/v1/album", params={"name": "Sea"}, json={"add": ["x"]}), 404
    )
    assert client.delete("/api/v1/album", params={"name": "Sea"}).status_code == 204
    assert client.get("/api/v1/albums").json() == []
    reads = client_of(Service(collection))
    assert reads.get("/api/v1/about").json()["can"]["albums"]
    for send in (reads.patch, reads.delete):
        body = {"json": {}} if send == reads.patch else {}
        assert "--writable" in reason(send("/api/v1/album", params={"name": "Sea"}, **body), 403)


def test_the_timeline(client):
    found = client.get("/api/v1/timeline").json()
    assert found["total"] == sum(one["count"] for one in found["months"]) == NUMBER
    assert "shapes" in found
    assert found["shapes"] is None
    found = client.get("/api/v1/timeline", params={"layout": True, "where": 'colour = "red"'}).json()
    assert found["shapes"] == [0, 0, 0]
    page = client.get("/api/v1/items", params={"order": "newest"}).json()
    assert page["version"] == found["version"]
    reason(client.get("/api/v1/timeline", params={"order": "best"}), 422)


def test_duplicates(client, collection):
    first = collection.index.get(collection.index.ids()[0])
    (vector,) = collection.index._vectors([first.id])
    collection.index.add([Item("copy", None, vector, (), {"width": 9, "height": 9})])

    def found(**asked):
        while (answer := client.get("/api/v1/duplicates", params=asked).json())["state"] == "computing":
            assert answer["groups"] == []
            time.sleep(0.02)
        return answer

    groups = found(number=100)["groups"]
    (group,) = [group for group in groups if "copy" in [item["id"] for item in group["items"]]]
    assert group["items"][0]["id"] == "copy", "the largest first"
    assert first.id in [item["id"] for item in group["items"]]
    collection.index.delete(["copy"])
    assert "copy" not in str(found(number=100))
    assert found(first=10**6)["groups"] == []
    reason(client.get("/api/v1/duplicates", params={"number": 1000}), 422)


def test_no_file_outside_the_folders_is_served(client, collection, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(photo(5), "PNG"))
    unknown = tmp_path / "Pictures" / "unknown.png"
    unknown.write_bytes(encoded(photo(5), "PNG"))
    link = collection.library.picture(collection.index.ids()[0])
    link.unlink()
    link.symlink_to(secret)
    for name in (
        str(secret),
        str(unknown),
        str(link),
        "../secret.png",
        "Pictures/../secret.png",
        "/etc/passwd",
        "\0",
    ):
        for route in ("picture", "original"):
            assert "there is no picture" in reason(client.get(f"/api/v1/{route}", params={"id": name}), 404)
    for path in (
        "/../secret.png",
        "/%2e%2e/secret.png",
        "/page/../app.py",
        "/..%2fapp.py",
        "/__init__.py",
        "//etc/passwd",
    ):
        assert client.get(path).status_code == 404
    assert client.get("/api/v1/items").json()["items"][0]["picture"] is False


def test_looking(client, collection):
    found = client.get("/api/v1/look", params={"id": collection.index.ids()[0], "text": "a red dog"}).json()
    assert found["kind"] == "fit"
    assert found["words"] == ["a", "red", "dog"]
    reason(client.get("/api/v1/look", params={"id": "none", "text": "dog"}), 404)
    reason(client.get("/api/v1/look", params={"id": collection.index.ids()[0], "text": "x" * 1001}), 400)


def test_about_models_health(client, collection):
    about = client.get("/api/v1/about").json()
    assert about["name"] == "Tiny pictures"
    assert about["items"] == NUMBER
    assert about["can"] == {
        "search": True,
        "ask_with_pictures": True,
        "show_pictures": True,
        "look": True,
        "duplicates": True,
        "albums": True,
        "write": True,
        "runs": False,
    }
    assert {"value": "red", "count": 3} in about["fields"]["colour"]
    (model,) = client.get("/api/v1/models").json()
    assert model["name"] == "rvse"
    assert model["role"] == "search"
    assert model["extractor"] == collection.towers.features
    assert client.get("/api/v1/health").json()["status"] == "ok"
    collection.stale = "rebuilt"
    assert client.get("/api/v1/health").json()["status"] == "stale"


def test_writing(client, collection):
    content = encoded(photo(50))
    answer = client.post(
        "/api/v1/items", params={"caption": ["a red dog", "a dog"]}, content=content, headers=JPEG
    )
    assert answer.status_code == 201
    name = answer.json()["id"]
    found = client.post("/api/v1/search?k=1", content=content, headers=JPEG).json()["answers"][0]
    assert found["id"] == name
    assert found["captions"] == ["a red dog", "a dog"]
    changed = client.patch("/api/v1/item", params={"id": name}, json={"metadata": {"stars": 5}})
    assert changed.json()["metadata"]["stars"] == 5
    assert changed.json()["captions"] == ["a red dog", "a dog"]
    assert client.delete("/api/v1/item", params={"id": name}).status_code == 204
    reason(client.delete("/api/v1/item", params={"id": name}), 404)
    assert len(collection.index) == NUMBER


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[1, 2]", "application/json", 422),
        (b'{"captions": "text"}', "application/json", 422),
        (b'{"captions": [""]}', "application/json", 400),
        (b'{"captions": ["\\ud800"]}', "application/json", 400),
        (b'{"caption": ["x"]}', "application/json", 422),
        (b'{"metadata": {"a": NaN}}', "application/json", 400),
        (b'{"metadata": ' + b'{"a": ' * 20_000 + b"1" + b"}" * 20_000 + b"}", "application/json", 400),
        (b"\xff\xfe", "application/json", 422),
        (b'{"captions": ["x"]}', "text/plain", 422),
    ],
)
def test_malformed_json(client, collection, content, kind, status):
    first = collection.index.ids()[0]
    answer = client.patch(
        "/api/v1/item", params={"id": first}, content=content, headers={"content-type": kind}
    )
    assert reason(answer, status)
    assert collection.index.get(first).captions == (WORDS[0], "number 0")


def test_a_service_that_only_reads(collection, client_of):
    client = client_of(Service(collection))
    first = collection.index.ids()[0]
    asked = [
        client.post("/api/v1/items", content=encoded(photo(1)), headers=JPEG),
        client.patch("/api/v1/item", params={"id": first}, json={"captions": ["x"]}),
        client.delete("/api/v1/item", params={"id": first}),
    ]
    for answer in asked:
        assert "--writable" in reason(answer, 403)
    assert len(collection.index) == NUMBER


def test_while_another_process_writes(client, collection, monkeypatch):
    from selhn.search.stores.segment_folder import IndexFolder

    monkeypatch.setattr("selhn.serve.item_routes.PATIENCE", 0.0)
    with IndexFolder(collection.index.path).writing():
        answer = client.delete("/api/v1/item", params={"id": collection.index.ids()[0]})
        assert "is being written by" in reason(answer, 409)
        assert client.get("/api/v1/search", params={"text": "dog"}).status_code == 200


def test_while_pictures_are_indexed(client, collection, tmp_path, monkeypatch):
    """Who indexes holds the index for each block only: an upload gets its turn between them, and waits meanwhile."""
    folder, other = collection.folders[0], Index.load(collection.index.path, collection.index.towers)
    for number in range(3):
        (folder / f"new{number}.png").write_bytes(encoded(photo(80 + number), "PNG"))
    monkeypatch.setattr("selhn.pictures.applying.PICTURES_AT_ONCE", 1)
    at_work, uploaded, add = threading.Event(), threading.Event(), Index.add

    def slow(index, items, existing="refuse"):
        if index is other and not at_work.is_set():
            at_work.set()
            time.sleep(0.3)  # it holds the lock
        return add(index, items, existing)

    def tell(*arguments):
        if len(other) > NUMBER:  # the first block is written: the next waits for the upload
            assert uploaded.wait(10)

    monkeypatch.setattr(Index, "add", slow)
    monkeypatch.setattr("selhn.pictures.how_far.HowFarFile.tell", tell)
    library = Library(other, collection.towers.extractor, [folder])
    done = []
    indexing = threading.Thread(
        target=lambda: done.append(
            library.apply(library.plan(library.scan(folder)), cache=tmp_path, quiet=True)
        )
    )
    indexing.start()
    assert at_work.wait(10)
    answer = client.post("/api/v1/items", content=encoded(photo(99)), headers=JPEG)
    assert answer.status_code == 201, answer.text
    assert not done, "in between"
    with pytest.raises(Locked):
        Library(Index.load(other.path, other.towers), collection.towers.extractor, [folder]).apply(
            library.plan(library.scan(folder)), cache=tmp_path, quiet=True
        )
    uploaded.set()
    indexing.join()
    assert done[0].added == 3
    collection.count()
    assert len(collection.index) == NUMBER + 4
    assert answer.json()["id"] in other


def test_a_full_disk(client, collection, monkeypatch):
    def full(*arguments, **settings):
        raise OSError(28, "No space left on device", "/home/someone/secret")

    monkeypatch.setattr(type(collection.index), "add", full)
    told = reason(client.post("/api/v1/items", content=encoded(photo(1)), headers=JPEG), 503)
    assert "No space left" in told
    assert "secret" not in told
    assert not list(collection.folders[0].glob("uploads/*")), "what is not indexed is not kept"


def test_limits_are_those_of_the_service(collection, client_of):
    client = client_of(Service(collection, limits=Limits(body=2000, pixels=1000, query=5, answers=3)))
    assert "at most 5" in reason(client.get("/api/v1/search", params={"text": "too long"}), 400)
    assert "at most 3" in reason(client.get("/api/v1/search", params={"text": "dog", "k": 4}), 400)
    reason(client.post("/api/v1/search", content=b"x" * 2001, headers=JPEG), 413)
    plain = encoded(Image.new("RGB", (40, 30)), "PNG")  # a JPEG would be read reduced
    assert "1,000 pixels" in reason(client.post("/api/v1/search?k=3", content=plain, headers=JPEG), 400)
    assert len(client.get("/api/v1/items", params={"number": 100}).json()["items"]) == 3


def test_the_description_is_complete(client):
    described = client.get("/api/v1/openapi.json").json()
    routes = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert ("post", "/api/v1/search") in routes
    assert ("get", "/api/v1/runs/log") in routes
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], f"{method} {path} is not explained"
            assert "Problem" in json.dumps(operation["responses"]["400"])
            assert "HTTPValidationError" not in json.dumps(operation)


@pytest.mark.parametrize(
    ("captions", "words"),
    [(["x"] * 101, "101 captions are too many"), (["x" * 200_000], "a caption")],
)
def test_captions_are_bounded(client, captions, words):
    first = client.get("/api/v1/items").json()["items"][0]["id"]
    answer = client.patch("/api/v1/item", params={"id": first}, json={"captions": captions})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_deep_metadata_are_refused_and_not_kept(client):
    first = client.get("/api/v1/items").json()["items"][0]["id"]
    deep = '{"metadata": {"a": ' + "[" * 300 + "]" * 300 + "}}"
    kind = {"content-type": "application/json"}
    assert client.patch("/api/v1/item", params={"id": first}, content=deep, headers=kind).status_code == 400
    assert client.get("/api/v1/items").status_code == 200


def test_a_picture_that_nobody_waits_for_is_not_decoded():
    """Whoever scrolls past thousands of pictures leaves requests behind, which must not keep others waiting."""
    ended = []

    async def receive():
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main():
        with pytest.raises(ClientDisconnect):
            await while_connected(Request({"type": "http"}, receive), work())
        await asyncio.sleep(0)
        assert await while_connected(Request({"type": "http"}, receive), asyncio.sleep(0, "done")) == "done"

    asyncio.run(main())
    assert ended == ["cancelled"]
