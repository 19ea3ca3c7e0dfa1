"""Bad input at a real server on loopback: a reason, bounded memory, and a service that goes on."""

import socket
import struct
import threading
import time

import httpx
import pytest
from picture_cases import encoded, huge_png, mutations, photo

from selhn.serve.guard import SECURITY_HEADERS

MIB = 2**20


@pytest.fixture(scope="module")
def server(start_server):
    server = start_server(body_seconds=1.0, seconds=20.0, head_seconds=2.0)
    is_well(server)
    return server


@pytest.fixture(autouse=True)
def goes_on(server):
    """Whatever a test sends: afterwards the service answers, has printed no traceback, and is not much larger."""
    before = server.memory()
    yield
    is_well(server)
    assert "Traceback" not in server.said()
    assert server.memory() - before < 120 * MIB


def is_well(server):
    for _ in range(3):
        answer = httpx.get(
            f"{server.address}/api/v1/search", params={"text": "a red dog", "k": 2}, timeout=20
        )
        assert answer.status_code == 200
        assert len(answer.json()["answers"]) == 2


def head(server, length, kind="image/jpeg", path="/api/v1/search", extra=""):
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{lines}Content-Length: {length}\r\n{extra}\r\n".encode()


def talk(server, *pieces, wait=0.0):
    """Send pieces, then read to the end; what was answered."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
                time.sleep(wait)
        except ConnectionError:
            pass
        received = b""
        try:
            while chunk := client.recv(65536):
                received += chunk
        except ConnectionError:
            pass
        return received


@pytest.mark.parametrize("path", ["/api/v1/search", "/api/v1/items", "/api/v1/health", "/"])
def test_a_body_of_100_mb_is_refused_before_it_is_sent(server, path):
    answer = talk(server, head(server, 100 * MIB, path=path))
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"MiB" in answer
    waiting = talk(server, head(server, 100 * MIB, path=path, extra="Expect: 100-continue\r\n"))
    assert b" 413 " in waiting.split(b"\r\n")[0], "and no 100 Continue before it"


def test_a_body_of_100_mb_that_does_not_say_so(server):
    def chunks():
        for _ in range(1600):
            yield b"\xff" * 65536

    try:
        answer = httpx.post(
            f"{server.address}/api/v1/search",
            content=chunks(),
            headers={"content-type": "image/jpeg"},
            timeout=30,
        )
        assert answer.status_code == 413
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # it was cut off while it was still sending
    assert 'route="other",method="other",status="413"' in httpx.get(f"{server.address}/metrics").text


def test_many_large_bodies_at_once(server):
    peak = [0]
    done = threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], server.memory())
            time.sleep(0.01)

    def ask():
        talk(server, head(server, 19 * MIB), *[b"\xff" * MIB] * 19)

    before = server.memory()
    watching = threading.Thread(target=watch)
    watching.start()
    senders = [threading.Thread(target=ask) for _ in range(24)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    done.set()
    watching.join()
    assert peak[0] - before < 2 * 8 * 20 * MIB, (
        "what eight at a time need, and as much again while they are copied"
    )


def test_decompression_bombs(server):
    for size in ((60_000, 60_000), (8_000, 8_000)):
        for path in ("/api/v1/search", "/api/v1/items"):
            answer = httpx.post(
                f"{server.address}{path}",
                content=huge_png(*size),
                headers={"content-type": "image/png"},
                timeout=30,
            )
            assert answer.status_code == 400
            assert "too large" in answer.json()["error"]


def test_damaged_pictures(server):
    statuses = set()
    for content in mutations(80, seed=9):
        answer = httpx.post(
            f"{server.address}/api/v1/search?k=1", content=content, headers={"content-type": "image/x"}
        )
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400), answer.text
    assert statuses == {200, 400}


def test_a_client_that_sends_a_body_slowly(server):
    answer = talk(server, head(server, 1000), b"x", wait=0.2)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"send it faster" in answer


def test_clients_that_go_away_in_the_middle(server):
    content = encoded(photo(3, (800, 600)))
    for share in (0.0, 0.3, 0.9, 1.0):
        for reset in (False, True):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            client.sendall(head(server, len(content)) + content[: int(share * len(content))])
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    for _ in range(20):  # and before a single byte of the answer
        client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        client.sendall(b"GET /api/v1/search?text=dog HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.close()
    is_well(server)
    until = time.monotonic() + 10
    while "selhn_requests_in_flight 1\n" not in httpx.get(f"{server.address}/metrics").text:
        assert time.monotonic() < until, "a picture that nobody waits for is still being answered"


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/9\r\n\r\n"],
)
def test_what_is_not_http_gets_the_same_headers(server, sent):
    first, *lines = talk(server, sent).partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert " 400 " in first
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    for name, value in SECURITY_HEADERS.items():
        assert headers[name.lower()] == value
    assert (headers["cache-control"], headers["connection"]) == ("no-store", "close")


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/picture?id=../../etc/passwd",
        "/api/v1/picture?id=/etc/passwd",
        "/api/v1/picture?id=%00",
        "/api/v1/runs/log?run=../../..",
        "/api/v1/runs/log?run=/etc",
        "/style.css/../../app.py",
        "/style.css%00.js",
    ],
)
def test_paths_that_lead_elsewhere(server, path):
    answer = talk(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert b" 404 " in answer.split(b"\r\n")[0]
    assert b"root:" not in answer


def test_wrong_kinds_and_malformed_json(server):
    for kind in ("text/html", "application/x-www-form-urlencoded", "multipart/form-data", "image", ""):
        answer = httpx.post(f"{server.address}/api/v1/search", content=b"x", headers={"content-type": kind})
        assert answer.status_code == 415
    for content in (b"{", b"\x00", b"[" * 100_000, b'{"captions": ' + b"[" * 50_000):
        answer = httpx.patch(
            f"{server.address}/api/v1/item?id=x",
            content=content,
            headers={"content-type": "application/json"},
        )
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]


def test_more_clients_than_are_answered(start_server):
    small = start_server(requests=2)
    found = []

    def ask():
        try:
            found.append(
                httpx.get(
                    f"{small.address}/api/v1/search", params={"text": "a red dog"}, timeout=30
                ).status_code
            )
        except httpx.HTTPError:
            found.append(0)

    askers = [threading.Thread(target=ask) for _ in range(40)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert set(found) <= {200, 503}
    assert 200 in found
    is_well(small)
