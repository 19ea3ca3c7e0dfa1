"""`selhn serve` as a person starts and stops it."""

import importlib.util
import os
import signal
import socket
import threading
from contextlib import ExitStack

import httpx
import pytest
from programs import Program

from selhn.base.errors import MissingExtra, SelhnError
from selhn.serve.access import Token
from selhn.serve.start import listen, serve


def test_without_the_packages(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra):
        serve()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_a_token(host, monkeypatch):
    monkeypatch.delenv("SELHN_TOKEN", raising=False)
    with pytest.raises(SelhnError, match="SELHN_TOKEN"):
        serve(host=host, port=0)


def test_a_port_that_is_taken():
    with (
        listen("127.0.0.1", 0) as first,
        pytest.raises(SelhnError, match=r"\(Address already in use\): choose"),
    ):
        listen("127.0.0.1", first.getsockname()[1])
    with pytest.raises(SelhnError):
        listen("127.0.0.1", 99999)
    with pytest.raises(SelhnError):
        listen("no.such.host.invalid", 80)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_other_kinds_of_addresses():
    try:
        with listen("::1", 0) as listening:
            assert listening.family == socket.AF_INET6
    except ValueError:
        pytest.skip("needs an IPv6 loopback")


@pytest.fixture
def start(tmp_path):
    """`selhn serve --runs`, which needs no model; gives the process, its address and the line that it printed."""
    (tmp_path / "runs").mkdir()
    with ExitStack() as stack:

        def start(*words, **env):
            command = ["-m", "selhn", "serve", "--runs", "runs", "--port", "0", *words]
            child = stack.enter_context(Program(*command, cwd=tmp_path, env={**os.environ, **env}))
            line = child.stdout.readline()
            assert "Training runs: http://127.0.0.1:" in line, child.said()
            return child, line.split()[2], line

        yield start


@pytest.fixture
def started(start):
    child, address, line = start(SELHN_TOKEN="a long secret")
    assert "asks for the token" in line
    assert "a long secret" not in line
    return child, address


def test_a_token_is_made_and_the_link_is_ready(start):
    """On a machine with several users, all of them can reach the service."""
    (_, link, _), (_, other, _) = start(), start()
    address, _, token = link.partition("/#token=")
    assert len(token) == 32
    assert token != other.partition("=")[2]
    assert httpx.get(f"{address}/").status_code == httpx.get(f"{address}/api/v1/health").status_code == 200
    for path in ("/api/v1/runs", "/metrics"):
        assert httpx.get(address + path).status_code == 401
        assert httpx.get(address + path, headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_no_token_is_a_choice(start):
    _, address, _ = start("--no-token", SELHN_TOKEN="a long secret")
    assert httpx.get(f"{address}/api/v1/runs").json() == []
    for wrong in ({"host": "0.0.0.0"}, {"token": "a long secret"}):
        with pytest.raises(SelhnError):
            serve(no_token=True, port=0, **wrong)


@pytest.mark.parametrize("token", ["1234567", "a long schlüssel", "a long\nsecret", " a long secret"])
def test_tokens_that_are_refused(token):
    """Too short to be safe from guessing, or not what a header carries, so that it would never fit."""
    with pytest.raises(SelhnError, match="the token"):
        serve(token=token, port=0)


def test_links_quote_their_token():
    assert Token("100%sure/#").link("http://a") == "http://a/#token=100%25sure%2F%23"
    assert Token(None).link("http://a") == Token("a long secret").shown("http://a") == "http://a"


def test_ctrl_c_stops_it_quietly(started):
    child, address = started
    assert httpx.get(f"{address}/api/v1/health").status_code == 200
    assert httpx.get(f"{address}/api/v1/runs").status_code == 401
    assert httpx.get(f"{address}/api/v1/runs", headers={"Authorization": "Bearer a long secret"}).json() == []
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=30)
    assert child.returncode == 0
    assert "Stopped." in said
    assert errors == ""


def test_what_is_being_answered_is_finished_first(start_server):
    server, found = start_server(slow=0.3), []

    def ask():
        found.append(httpx.get(f"{server.address}/api/v1/search", params={"text": "a red dog"}, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    while "requests_in_flight 2" not in httpx.get(f"{server.address}/metrics").text:
        assert asking.is_alive(), "it should still be answered"
    server.process.send_signal(signal.SIGTERM)
    asking.join()
    assert found[0].status_code == 200
    server.process.wait(timeout=30)
    assert "Traceback" not in server.said()


def test_answers_do_not_wait_for_an_acknowledgement():
    """Head and body go out one after the other; the second would wait 40 ms for the client to confirm the first."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
