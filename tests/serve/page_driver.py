"""Drives the page in a real browser: Debian's Chromium (`apt-get install chromium`), by Playwright."""

import os
import re
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
playwright.expect.set_options(timeout=20_000)
expect = playwright.expect
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium, or CHROMIUM=PATH"
)
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def until(page, expression):
    """Wait for something to be true; the policy of the page forbids Playwright's own way, which is eval."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def captions(page):
    return page.locator(".card .caption").all_inner_texts()


def ask(page, text):
    with page.expect_response(re.compile("/api/v1/search")) as answered:
        page.fill("#text", text)
        page.press("#text", "Enter")
    return [" ".join(hit["captions"][:1]) for hit in answered.value.json()["answers"]]


def drop(page, content, kind="image/png"):
    page.evaluate(
        """async ([bytes, kind]) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(bytes)], "picture", { type: kind }));
            const how = { dataTransfer: carried, bubbles: true, cancelable: true };
            for (const name of ["dragenter", "dragover"]) document.body.dispatchEvent(new DragEvent(name, how));
            window.zone = !document.getElementById("drop").hidden;
            document.body.dispatchEvent(new DragEvent("drop", how));
        }""",
        [list(content), kind],
    )


def touch(page, *moves, times=1):
    """Fingers that go down at the first places, move along the others, and leave; several times, quickly."""
    session = page.context.new_cdp_session(page)

    def send(kind, points):
        session.send(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]}
        )

    for _ in range(times):
        send("touchStart", moves[0])
        for points in moves[1:]:
            send("touchMove", points)
        send("touchEnd", [])
    session.detach()
