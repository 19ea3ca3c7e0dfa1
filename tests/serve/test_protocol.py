"""Clients that send a head, or take an answer, byte by byte: they are let go, and others are answered meanwhile."""

import socket
import time

import httpx
import pytest


@pytest.fixture(scope="module")
def server(start_server):
    return start_server(head_seconds=0.5, body_seconds=0.5, seconds=5.0)


def connect(server):
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.settimeout(20)
    return client


def is_closed(client):
    try:
        while client.recv(1000):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def is_well(server):
    answer = httpx.get(f"{server.address}/api/v1/search", params={"text": "a red dog", "k": 1}, timeout=20)
    return answer.status_code == 200 and server.process.poll() is None


def test_a_head_without_an_end(server):
    clients = [connect(server) for _ in range(5)]
    for client, words in zip(
        clients, [b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n"]
    ):
        client.sendall(words) if words else None
    assert is_well(server)
    for client in clients:
        assert is_closed(client)
        client.close()


def test_a_second_head_without_an_end(server):
    with connect(server) as client:
        client.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in client.recv(5000)
        client.sendall(b"GET /api")
        assert is_closed(client)
    assert is_well(server)


def test_a_head_that_comes_in_pieces_is_read(server):
    with connect(server) as client:
        for piece in (b"GET /api/v1/hea", b"lth HTTP/1.1\r\nHo", b"st: localhost\r\n", b"\r\n"):
            client.sendall(piece)
            time.sleep(0.02)
        assert b"200 OK" in client.recv(5000)


def test_an_answer_that_nobody_takes(server):
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line = b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            for _ in range(3000):
                client.sendall(line)
        except (ConnectionError, TimeoutError):
            pass
        assert is_well(server)


@pytest.mark.parametrize(
    "words", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000]
)
def test_what_is_no_http(server, words):
    with connect(server) as client:
        try:
            client.sendall(words)
            answer = client.recv(1000)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert is_well(server)
    assert "Traceback" not in server.said()
