"""Connections that ask nothing, or not yet: they are closed first, and whoever asks is answered."""

import contextlib
import socket
import time

import httpx
import pytest

SLOW_BODY = b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 9\r\n\r\nx"


@pytest.fixture(scope="module")
def server(start_server):
    """With few file descriptors; half of them are for connections."""
    return start_server(descriptors=128, requests=4, uploads=2)


@contextlib.contextmanager
def connections(server, number, words=b""):
    """Clients that send some words and then nothing."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(number):
            opened.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            )
            if words:
                with contextlib.suppress(ConnectionError):
                    opened[-1].sendall(words)
        yield opened


def ask(server, client=httpx, path="/api/v1/search?text=a+red+dog&k=2"):
    return client.get(server.address + path, timeout=10).status_code


def is_open(client):
    """Whether the server has neither answered nor closed the connection."""
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nX: ", SLOW_BODY])
def test_many_connections_that_ask_nothing(server, words):
    with httpx.Client() as before, connections(server, 20):
        assert ask(server, before) == 200
        with connections(server, 300, words) as idle:
            started = time.monotonic()
            assert [ask(server) for _ in range(10)] == [200] * 10
            assert time.monotonic() - started < 5
            assert not is_open(idle[0]), "the oldest are closed"
            if words != SLOW_BODY:
                assert is_open(idle[-1]), "not the newest"
                assert ask(server, before) == 200, "nor those that have asked something"
    assert "Traceback" not in server.said()
    assert len(server.said().splitlines()) <= 3, server.said()


@pytest.mark.parametrize("path", ["/api/v1/health", "/metrics", "/", "/api/v1/search?text=dog"])
def test_slow_bodies_are_not_counted_as_requests(server, path):
    with connections(server, 10, SLOW_BODY) as slow:
        time.sleep(0.2)
        assert all(map(is_open, slow)), "all of them are being received"
        assert ask(server, path=path) == 200
        picture = {"content-type": "image/png"}
        answer = httpx.post(f"{server.address}/api/v1/search", content=b"no picture", headers=picture)
        assert answer.status_code == 400, "it is read, though others are slow"


def test_no_file_descriptor_is_left(start_server):
    """Other files need them all: whoever connects is turned away at once, in one line of the log."""
    server = start_server(descriptors=128, greedy=1)
    with httpx.Client() as before:
        assert ask(server, before, "/api/v1/about") == 200, "this takes all that are left"
        with connections(server, 50) as refused:
            time.sleep(0.5)
            assert not any(map(is_open, refused))
        assert ask(server, before, "/api/v1/health") == 200
    assert "Traceback" not in server.said()
    assert len(server.said().splitlines()) == 1, server.said()
    assert "ulimit" in server.said()


def test_it_stops_at_once(start_server):
    server = start_server()
    with connections(server, 20), connections(server, 20, SLOW_BODY):
        time.sleep(0.3)
        server.process.terminate()
        started = time.monotonic()
        server.process.wait(timeout=20)
        assert time.monotonic() - started < 2
    assert "Traceback" not in server.said()
