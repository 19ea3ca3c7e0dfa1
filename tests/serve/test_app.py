import re
from importlib import resources

import pytest

from selhn.base.errors import SelhnError
from selhn.serve.app import create_app
from selhn.serve.service import Service

FOLDERS = (resources.files("selhn.serve").joinpath("page"), resources.files("selhn.report").joinpath("chart"))
FILES = {file.name: file for folder in FOLDERS for file in folder.iterdir()}


def test_the_page_and_its_files(client):
    for path, kind in {"/": "text/html", "/docs": "text/html", "/style.css": "text/css", "/main.js": "text/javascript",
                       "/icon.svg": "image/svg+xml"}.items():  # fmt: skip
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304
        assert client.head(path).status_code == 200
        assert client.post(path).status_code == 405


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_of_the_page_is_from_elsewhere(name):
    text = FILES[name].read_text()
    allowed = ("http://www.w3.org/2000/svg", "http://www.w3.org/${namespace}")  # names, never fetched
    if name == "facts.js":  # a link, followed only by who clicks it
        allowed += ("https://www.openstreetmap.org/",)
    for address in re.findall(r"https?://[^\s\"'`)]+", text):
        assert address.startswith(allowed), f"{name} names {address}"
    assert "@import" not in text
    if name.endswith(".js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        )
        for module in re.findall(r"from \"(.*?)\"", text):
            assert module.removeprefix("./") in FILES
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*src=)", text)
        assert not re.search(r"\son\w+=|style=", text), "the policy of the page forbids it"
        for target in re.findall(r'(?:src|href)="/([\w.]+)"', text):
            assert target in FILES or target == "docs"


@pytest.mark.parametrize("path", ["/index.html", "/docs.html"])
def test_pages_have_one_address(client, path):
    assert client.get(path).status_code == 404


def test_short_tokens_are_refused(collection):
    with pytest.raises(SelhnError, match="shorter than 8"):
        create_app(Service(collection), token="1234")


def test_with_a_token(collection, client_of):
    client = client_of(Service(collection), token="a long secret")
    assert client.get("/").status_code == 200
    assert client.get("/api/v1/health").status_code == 200
    assert client.get("/api/v1/items").status_code == 401
    assert client.get("/api/v1/items", headers={"authorization": "Bearer a long secret"}).status_code == 200


def test_what_is_not_there_is_told_as_all_else(client):
    answer = client.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert answer.json() == {"error": "Not Found"}


def test_the_thread_of_the_model_ends_with_the_application(collection):
    from starlette.testclient import TestClient

    service = Service(collection)
    with TestClient(create_app(service), base_url="http://localhost") as client:
        client.get("/api/v1/search", params={"text": "dog"})
    assert service.queries._thread._shutdown
