import hmac
import time
from random import Random

import anyio
import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from selhn.serve.guard import SECURITY_HEADERS, Guard, host_name, is_loopback
from selhn.serve.media_cookie import MediaCookie
from selhn.serve.service import Service

TOKEN = "a secret that nobody knows"


async def fine(scope, receive, send):
    await PlainTextResponse("fine")(scope, receive, send)


def client(**settings):
    return TestClient(Guard(fine, **settings), base_url="http://localhost:8000")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "192.168.1.7", "my.pc:80"]
)
def test_hosts_that_are_ours(host):
    answer = client(hosts=["My.PC"]).get("/", headers={"host": host})
    assert answer.text == "fine"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a b"]
)
def test_a_name_that_is_not_ours_is_turned_away(host):
    answer = client(hosts=["my.pc"]).get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "--hostname" in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:9000"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_others_send_nothing(headers, status):
    for method in ("POST", "DELETE", "PATCH"):
        assert client().request(method, "/", headers=headers).status_code == status
    assert client().get("/", headers=headers).status_code == 200, "what is read, the browser keeps from them"


def test_every_answer_tells_the_browser_to_be_careful():
    guarded = client(token=TOKEN)
    for answer in (
        guarded.get("/"),
        guarded.get("/api/v1/items"),
        guarded.get("/", headers={"host": "evil.example"}),
    ):
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy, "no outside resource"


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "Bearer", "Basic " + TOKEN, TOKEN, "Bearer " + TOKEN + "x"]
)
def test_without_the_token(given):
    headers = {} if given is None else {"authorization": given}
    for path in ("/api/v1/search", "/metrics", "/api/"):
        answer = client(token=TOKEN).get(path, headers=headers)
        assert answer.status_code == 401
        assert "Bearer" in answer.headers["www-authenticate"]
        assert TOKEN not in answer.text


def test_with_the_token():
    for scheme in ("Bearer", "bearer"):
        headers = {"authorization": f"{scheme} {TOKEN}"}
        assert client(token=TOKEN).get("/api/v1/search", headers=headers).text == "fine"


def test_what_is_open_without_it():
    for path in ("/", "/style.css", "/docs", "/api/v1/health", "/api/v1/openapi.json"):
        assert client(token=TOKEN).get(path).text == "fine"


def test_the_token_is_compared_in_constant_time(monkeypatch):
    import secrets

    seen = []
    real = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: seen.append((a, b)) or real(a, b))
    client(token=TOKEN).get("/metrics", headers={"authorization": "Bearer schlüssel".encode()})
    assert seen[0][1] == TOKEN.encode()


MEDIA = MediaCookie()


def given_cookie(media=MEDIA):
    """As a browser sends it back."""
    answer = Response()
    media.give(answer, False)
    return answer.headers["set-cookie"].partition(";")[0]


def by_cookie(cookie, path="/api/v1/original", method="GET", **headers):
    guarded = client(token=TOKEN, cookie=MEDIA)
    return guarded.request(method, path, headers={"cookie": cookie, **headers}).status_code


def test_a_cookie_opens_pictures_and_originals_only():
    cookie = given_cookie()
    assert (
        by_cookie(cookie)
        == by_cookie(f"other=1; {cookie}; last=2")
        == by_cookie(cookie, method="HEAD")
        == 200
    )
    assert (
        by_cookie(cookie, "/api/v1/picture") == by_cookie(cookie, **{"sec-fetch-site": "same-origin"}) == 200
    )
    for path in ("/api/v1/items", "/api/v1/original/", "/api/v1/cookie", "/metrics", "/api/v1/about"):
        assert by_cookie(cookie, path) == 401
    assert by_cookie(cookie, method="DELETE") == by_cookie(cookie, **{"sec-fetch-site": "same-site"}) == 401
    assert by_cookie(cookie, **{"sec-fetch-site": "cross-site"}) == 403
    assert TOKEN not in cookie


@pytest.mark.parametrize("change", ["later", "longer", "shorter", "name", "other service", "not ASCII"])
def test_a_cookie_that_was_changed_opens_nothing(change):
    name, _, value = given_cookie().partition("=")
    end, _, signed = value.partition(".")
    made = {
        "later": f"{name}={int(end) + 1}.{signed}",
        "longer": f"{name}={value}0",
        "shorter": f"{name}={end}.",
        "name": f"{name}=name.{MEDIA.name[-16:]}",
        "other service": f"{name}={given_cookie(MediaCookie()).partition('=')[2]}",
        "not ASCII": f"{name}={end}.\xe9".encode("latin-1"),
    }
    assert by_cookie(made[change]) == 401


def test_the_token_cannot_be_guessed_from_a_cookie():
    """Other services of the host receive it: with the token as the key, a short one would be found in seconds."""
    name, _, value = given_cookie().partition("=")
    end, _, signed = value.partition(".")
    for key in (TOKEN.encode(), b""):
        for words in (end, f"selhn media {end}", "selhn media name"):
            guess = hmac.digest(key, words.encode(), "sha256").hex()
            assert guess != signed
            assert not name.endswith(guess[:16])
    assert given_cookie(MediaCookie()).partition("=")[0] != name


def test_a_cookie_ends_after_an_hour(monkeypatch):
    cookie, now = given_cookie(), time.time()
    monkeypatch.setattr("selhn.serve.media_cookie.time.time", lambda: now + 3590)
    assert by_cookie(cookie) == 200
    monkeypatch.setattr("selhn.serve.media_cookie.time.time", lambda: now + 3601)
    assert by_cookie(cookie) == 401


def test_the_service_gives_a_cookie_for_its_token(client_of, collection):
    service = client_of(Service(collection), token=TOKEN)
    assert service.post("/api/v1/cookie").status_code == 401
    known = {"authorization": f"Bearer {TOKEN}"}
    plain = service.post("/api/v1/cookie", headers=known)
    assert plain.status_code == 204
    limits = {part.strip().lower() for part in plain.headers["set-cookie"].split(";")[1:]}
    assert limits == {"httponly", "max-age=3600", "path=/api/v1", "samesite=strict"}
    assert service.get("/api/v1/picture", params={"id": collection.index.ids()[0]}).status_code == 200
    assert service.get("/api/v1/items").status_code == 401
    behind = service.post("/api/v1/cookie", headers={**known, "origin": "https://localhost"})
    assert behind.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "pc.local", ""])
def test_not_loopback(host):
    assert not is_loopback(host)


def test_host_names():
    assert host_name("PC:80") == "pc"
    assert host_name("[::1]:8000") == "::1"
    assert host_name("my_pc.example") == "my_pc.example"


MALFORMED = [
    "user@localhost", "user:secret@localhost:80", "evil.example@127.0.0.1", "localhost@", "@localhost",
    "localhost/", "localhost/evil.example", "localhost?x", "localhost#x", "//localhost", "http://localhost",
    "localhost\\evil.example", "local\thost", "localhost\t", "localhost x", "localhost:8000:9000",
    "localhost:80 ", "localhost:x", "localhost:-1", "localhost:65536", "localhost:99999999999",
    "localhost:\u0661", "::1", "[::1", "::1]", "[]", "[localhost]", "[127.0.0.1]", "[::1]x", "[::1]:x",
    "[::1%25eth0]", "[fe80::1%eth0]", "[v1.x]", "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.01",
    "127.0.0.1.", "localhost.", "localhost..", ".localhost", "localhost,evil.example", "localhost;x",
    "localhost%00", "%6cocalhost", "localhost\x00", "localhost\x7f", "l\xf6calhost",
    "\uff11\uff12\uff17.0.0.1", "\u2460.0.0.1", "",
]  # fmt: skip


@pytest.mark.parametrize("host", MALFORMED)
def test_hosts_that_no_browser_sends(host):
    assert status_of([("host", host)]) == 421


def test_hosts_made_at_random():
    """Whatever passes is one of our names or an IP address, with or without a port, and nothing else."""
    random, passed = Random(0), set()
    parts = [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "evil.example",
        "my.pc",
        ":80",
        ":",
        "@",
        "/",
        ".",
        "[",
        "]",
        "%",
        " ",
        "\t",
        "\xe9",
    ]
    for _ in range(5_000):
        host = "".join(random.choices(parts, k=random.randint(1, 4)))
        if status_of([("host", host)]) == 200:
            passed.add(host)
    names = {"localhost", "127.0.0.1", "[::1]", "my.pc"}
    assert passed <= {name + port for name in names for port in ("", ":", ":80")}
    assert names <= passed


def status_of(headers, path="/api/v1/items"):
    """What the guard answers to a head as it is, which a client would refuse to send."""
    raw = [
        (name.encode(), value.encode("latin-1" if max(value, default="") < "\u0100" else "utf-8"))
        for name, value in headers
    ]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw, "query_string": b""}
    sent = []

    async def send(message):
        sent.append(message)

    anyio.run(Guard(fine, hosts=["my.pc"]), scope, None, send)
    return sent[0]["status"]


def test_several_hosts_or_none():
    assert status_of([]) == 421
    assert status_of([("host", "localhost"), ("host", "evil.example")]) == 421
    assert status_of([("host", "localhost"), ("host", "localhost")]) == 421


@pytest.mark.parametrize(
    "path", ["http://evil.example/api/v1/items", "*", "api/v1/items", "", "localhost:80"]
)
def test_a_target_that_is_not_a_path(path):
    """The name in such a target would count more than the Host header, which the guard reads."""
    assert status_of([("host", "localhost")], path) == 400


@pytest.mark.parametrize(
    "origin",
    ["http://user@localhost:8000", "http://localhost:8000/", "//localhost:8000", "ftp://localhost:8000", ""],
)
def test_origins_that_no_browser_sends(origin):
    assert client().post("/", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        ("/api/v1/search?text=x", "cross-site", 403),
        ("/metrics", "cross-site", 403),
        ("/", "cross-site", 200),
        ("/api/v1/search?text=x", "same-origin", 200),
        ("/api/v1/search?text=x", "none", 200),
    ],
)
def test_pages_of_others_ask_nothing(path, site, status):
    assert client().get(path, headers={"sec-fetch-site": site}).status_code == status
