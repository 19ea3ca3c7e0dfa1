"""Every route of the service, asked in the process that would serve."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from faults.given import TOKEN, Place, selhn
from picture_cases import encoded, photo


def asked(path: str, ids: list[str]) -> Iterator[dict[str, Any]]:
    """What is sent to a route: the settings of each request."""
    picture = {"content": encoded(photo(11, (60, 40)), "PNG"), "headers": {"content-type": "image/png"}}
    each = [{"params": {"id": one}} for one in ids]
    requests: dict[str, list[dict[str, Any]]] = {
        "GET /api/v1/search": [
            {"params": {"text": "word1 word2"}},
            {"params": {"text": "word1", "find": "text"}},
            *({"params": {"like": one}} for one in ids[:1]),
        ],
        "POST /api/v1/search": [{"params": {"k": 3}, **picture}],
        "GET /api/v1/look": [{"params": {"id": one, "text": "word1"}} for one in ids[:1]],
        "GET /api/v1/items": [{"params": {"order": "newest"}}],
        "GET /api/v1/timeline": [{"params": {"layout": True}}],
        "GET /api/v1/duplicates": [{}],
        "GET /api/v1/item": each,
        "GET /api/v1/picture": each,
        "GET /api/v1/original": [{"params": {"id": one, "download": True}} for one in ids],
        "GET /api/v1/progress": [{"params": {"files": True}}],
        "GET /api/v1/runs/log": [{"params": {"run": "run"}}],
        "GET /api/v1/runs/verdict": [{"params": {"run": "run"}}],
        "PATCH /api/v1/item": [
            {"params": {"id": one}, "json": {"captions": ["word3"], "metadata": {"favourite": True}}}
            for one in ids[:1]
        ],
        "PATCH /api/v1/album": [{"params": {"name": "Trip"}, "json": {"add": ids[:1], "remove": ids[1:2]}}],
        "POST /api/v1/items": [picture],
        "DELETE /api/v1/album": [{"params": {"name": "Trip"}}],
        "DELETE /api/v1/item": [{"params": {"id": one}} for one in ids[-2:]],
    }
    plain = ("albums", "about", "models", "health", "runs", "openapi.json", "cookie")
    requests |= {f"{'POST' if name == 'cookie' else 'GET'} /api/v1/{name}": [{}] for name in plain}
    if not path.startswith(("GET /api", "POST /api", "PATCH /api", "DELETE /api")):
        return iter([{}])  # the page
    if path not in requests:
        raise AssertionError(f"{path} has no request here: add one")
    return iter(requests[path])


ORDER = ("GET", "POST", "PATCH", "DELETE")


def ask_all(app: Any) -> None:
    """Call every route of the application; prints all answers."""
    from starlette.testclient import TestClient

    routes = sorted(all_routes(app), key=lambda one: (ORDER.index(one[0]), one[1]))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(
        app, base_url="http://localhost", headers=headers, raise_server_exceptions=False
    ) as client:
        listed = client.get("/api/v1/items", params={"number": 50})
        ids = [one["id"] for one in listed.json()["items"]] if listed.status_code == 200 else []
        for method, path in routes:
            for request in asked(f"{method} {path}", ids):
                answer = client.request(method, path, **request)
                print(method, path, request.get("params"), answer.status_code, flush=True)
                if path.startswith("/api") and answer.status_code != 204:
                    print(
                        dict(answer.headers), answer.content.decode("utf-8", "backslashreplace"), flush=True
                    )
                if answer.status_code == 500 and b"a bug in selhn" in answer.content:
                    raise AssertionError(f"{method} {path} answers that there is a bug")


def all_routes(router: Any) -> Iterator[tuple[str, str]]:
    """The method and path of every route, also of routers that are included."""
    for route in router.routes:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from all_routes(inner)
        for method in set(getattr(route, "methods", None) or ()) & set(ORDER):
            yield method, route.path


def served(*words: object) -> int:
    """A command that serves, ended when every route was asked."""
    import uvicorn

    uvicorn.Server.run = lambda server, sockets=None: ask_all(server.config.app)
    return selhn(*words, "--port", 0)


def _without_lock(found: Any, instance: Any, owner: Any = None) -> Any:
    """A `cached_property` as it is from Python 3.12 on: a lock that another thread holds is never free after a fork."""
    if instance is None:
        return found
    if found.attrname not in vars(instance):
        vars(instance)[found.attrname] = found.func(instance)
    return vars(instance)[found.attrname]


def photographs(place: Place, *words: object) -> int:
    """`selhn photos`, until it has indexed and every route was asked; its other process is forked from this one."""
    import multiprocessing
    import time

    import uvicorn
    from starlette.testclient import TestClient

    forked = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forked
    cached_property.__get__ = _without_lock

    def answer(server: Any, sockets: Any = None) -> None:
        client = TestClient(
            server.config.app, base_url="http://localhost", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        end = time.monotonic() + 10
        while client.get("/api/v1/progress").json().get("state") == "indexing" and time.monotonic() < end:
            time.sleep(0.05)
        ask_all(server.config.app)

    uvicorn.Server.run = answer
    return selhn("photos", *words, "--index", place.given / "index", "--no-browser", "--port", 0)
