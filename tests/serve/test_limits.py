from pathlib import Path

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from selhn.serve.limits import Bounded, Limits

LIMITS = Limits(body=1000, text_body=100, requests=2, uploads=1, seconds=0.3, body_seconds=0.2)


async def echo(scope, receive, send):
    """Answers with the length of the body; HTTPExceptions of the middleware are shown as FastAPI would."""
    from starlette.exceptions import HTTPException

    try:
        body = await Request(scope, receive).body()
        if b"sleep" in scope["path"].encode():
            await anyio.sleep(5)
        answer = PlainTextResponse(str(len(body)))
    except HTTPException as refused:
        answer = PlainTextResponse(refused.detail, refused.status_code, refused.headers)
    await answer(scope, receive, send)


def send(path="/", content=b"", headers=None, app=None, times=1):
    async def ask():
        transport = httpx.ASGITransport(app or Bounded(echo, LIMITS))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = [None] * times

            async def one(row):
                found[row] = await client.post(path, content=content, headers=headers or {})

            async with anyio.create_task_group() as group:
                for row in range(times):
                    group.start_soon(one, row)
            return found

    return anyio.run(ask)


def test_what_is_within_bounds_passes():
    assert send(content=b"x" * 100)[0].text == "100"
    assert send(content=b"x" * 1000, headers={"content-type": "image/png"})[0].text == "1000"


@pytest.mark.parametrize("kind", ["application/json", "image/png"])
def test_a_body_that_says_how_large_it_is_is_not_read(kind):
    reads = []

    async def never(scope, receive, send):
        reads.append(1)

    answer = send(content=b"x" * 1001, headers={"content-type": kind}, app=Bounded(never, LIMITS))[0]
    assert answer.status_code == 413
    assert "MiB" in answer.json()["error"]
    assert answer.headers["connection"] == "close"
    assert not reads


def test_a_body_that_does_not_say_so_is_read_up_to_the_limit():
    sent = []

    async def chunks():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 60

    answer = send(content=chunks())[0]
    assert answer.status_code == 413
    assert len(sent) < 10


@pytest.mark.parametrize("length", ["-1", "many", "9" * 40])
def test_a_length_that_is_none(length):
    assert send(headers={"content-length": length})[0].status_code == 413


def test_compressed_bodies_are_refused():
    answer = send(headers={"content-encoding": "gzip"})[0]
    assert answer.status_code == 415
    assert "compressed" in answer.json()["error"]


def test_a_body_that_comes_too_slowly():
    async def slowly():
        yield b"x"
        await anyio.sleep(3)
        yield b"x"

    answer = send(content=slowly())[0]
    assert answer.status_code == 408
    assert "send it faster" in answer.text


def test_an_answer_that_takes_too_long():
    answer = send("/sleep")[0]
    assert answer.status_code == 503
    assert "seconds" in answer.json()["error"]
    assert answer.headers["retry-after"]


def test_more_than_can_be_answered_at_a_time():
    app = Bounded(echo, LIMITS)
    answers = send("/api/sleep", app=app, times=5)
    assert [answer.status_code for answer in answers] == [503] * 5
    assert sum("is busy with 2 requests" in answer.text for answer in answers) == 3, "two of them were begun"
    assert app.answering == 0
    assert send(app=app)[0].status_code == 200, "afterwards it answers again"


def test_more_pictures_than_are_answered_at_a_time_wait_their_turn():
    app, together = None, []

    async def answer(scope, receive, send):
        together.append(app.answering)
        await anyio.sleep(0.02)
        await echo(scope, receive, send)

    app = Bounded(answer, LIMITS)
    answers = send("/api/x", content=b"x", headers={"content-type": "image/png"}, app=app, times=5)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert together == [1] * 5
    assert (app.answering, app.held) == (0, 0)


def test_the_page_on_the_service_names_them():
    limits, page = Limits(), (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    for words in (
        f"| picture in a body | {limits.body // 2**20} MiB, {limits.pixels // 10**6} million pixels",
        f"| JSON | {limits.text_body // 2**20} MiB |",
        f"| sentence, filter | {limits.query:,} characters |",
        f"| answers | {limits.answers} |",
        f"| head of a request; reading its answer | {limits.head_seconds:g} seconds |",
        f"| body | {limits.body_seconds:g} seconds |",
        f"| request | {limits.seconds:g} seconds |",
        f"| requests at a time | {limits.requests}, of them {limits.uploads} with pictures |",
        f"| connections | {limits.connections}, or half the file descriptors",
        f"| bodies in memory | {limits.uploads * limits.body // 2**20} MiB |",
    ):
        assert words in page


@pytest.mark.parametrize("name", ["content-type", "content-length"])
def test_a_head_that_says_two_things(name):
    answer = send(content=b"x" * 10, headers=[(name, "10"), (name, "image/png")])[0]
    assert answer.status_code == 400
    assert f"several {name}" in answer.json()["error"]
