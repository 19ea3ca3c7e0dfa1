"""Pictures that take long to decode, at a real server: they end, and others are answered meanwhile."""

import signal
import threading
import time

import httpx
import pytest
from picture_cases import encoded, photo, scan_bomb, slow_picture

GOOD = encoded(photo(3, (60, 40)))


def post(server, content, path="/api/v1/search?k=1", timeout=30):
    try:
        kind = {"content-type": "image/jpeg"}
        return httpx.post(server.address + path, content=content, headers=kind, timeout=timeout).status_code
    except httpx.HTTPError:
        return 0


def post_many(server, content, number):
    statuses = []
    threads = [threading.Thread(target=lambda: statuses.append(post(server, content))) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads, statuses


@pytest.fixture(scope="module")
def server(start_server):
    return start_server()


def test_jpegs_of_many_scans(server):
    bomb = scan_bomb(2000, 2400, 1800)
    started = time.monotonic()
    assert [post(server, bomb, path) for path in ("/api/v1/search", "/api/v1/items") * 2] == [400] * 4
    assert time.monotonic() - started < 8
    assert post(server, GOOD) == 200


def test_a_request_that_is_too_late_leaves_its_decoder_to_others(start_server):
    server = start_server(seconds=1.0)
    assert post(server, GOOD) in (200, 503)  # now a decoder has started
    threads, statuses = post_many(server, slow_picture(1500, 1500), 2)
    for thread in threads:
        thread.join()
    assert statuses == [503, 503]
    assert post(server, GOOD) == 200


def test_neither_thumbnails_nor_sigterm_wait_for_pictures_that_were_sent(server):
    name = httpx.get(f"{server.address}/api/v1/items").json()["items"][0]["id"]
    assert post(server, GOOD) == 200
    threads, _ = post_many(server, slow_picture(1600, 1600), 8)
    while "requests_in_flight 9" not in httpx.get(f"{server.address}/metrics").text:  # these and this one
        assert any(thread.is_alive() for thread in threads), "they should be being decoded"
    started = time.monotonic()
    assert httpx.get(f"{server.address}/api/v1/picture", params={"id": name}, timeout=30).status_code == 200
    assert time.monotonic() - started < 3
    assert any(thread.is_alive() for thread in threads), "they are still being decoded"
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(10)
    assert time.monotonic() - started < 4, "3 seconds, on a busy machine"
    for thread in threads:
        thread.join()
    assert "Traceback" not in server.said()
