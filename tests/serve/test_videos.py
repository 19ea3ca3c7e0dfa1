"""Videos in the service and in a real browser: found at a moment, shown by its frame, played from there."""

import io

import numpy as np
import pytest
from page_driver import PHONE, expect, needs_chromium, touch, until
from picture_cases import encoded
from PIL import Image
from tiny import NUMBER, SCENES, make_collection

pytest.importorskip("av", reason="needs PyAV: pip install av")
TIME = "document.getElementById('detail-video').currentTime"


@pytest.fixture(scope="module")
def server(start_server):
    return start_server(videos=1)


@pytest.fixture
def collection(tmp_path):
    return make_collection(tmp_path, videos=1)


def by_scene(client, scene):
    found = client.post(
        "/api/v1/search", content=encoded(SCENES[scene], "PNG"), headers={"Content-Type": "image/png"}
    )
    return found.json()["answers"]


def test_a_video_in_the_api(client, collection):
    """It is one item of lists, and answers are its best moment."""
    clip = str(collection.folders[0] / "clip.webm")
    assert client.get("/api/v1/about").json()["items"] == NUMBER + 2
    listed = client.get("/api/v1/items", params={"order": "newest", "number": 100}).json()
    assert [item["id"] for item in listed["items"]].count(clip) == 1
    assert len(listed["items"]) == listed["total"] == NUMBER + 2
    assert client.get("/api/v1/timeline").json()["total"] == NUMBER + 2
    for scene, name in enumerate((clip, f"{clip}#t=4", f"{clip}#t=8")):
        answers = by_scene(client, scene)
        assert answers[0]["id"] == name
        assert sum(clip in answer["id"] for answer in answers) == 1
        drawn = Image.open(
            io.BytesIO(client.get("/api/v1/picture", params={"id": name, "size": 160}).content)
        )
        assert np.abs(np.asarray(drawn, dtype=int) - np.asarray(SCENES[scene])).mean() < 12
    tags = {
        client.get("/api/v1/picture", params={"id": name}).headers["etag"] for name in (clip, f"{clip}#t=4")
    }
    assert len(tags) == 2
    assert client.get("/api/v1/picture", params={"id": f"{clip}#t=5"}).status_code == 404, (
        "only what is in the index"
    )
    changed = client.patch("/api/v1/album", params={"name": "Trip"}, json={"add": [f"{clip}#t=4"]})
    assert changed.json() == {"name": "Trip", "ids": [clip]}
    assert client.delete("/api/v1/item", params={"id": f"{clip}#t=8"}).status_code == 204
    assert not any(clip in name for name in collection.index.ids())


def test_parts_of_a_file(client, collection):
    path = collection.folders[0] / "clip.webm"
    content, size = path.read_bytes(), path.stat().st_size
    asked = {"id": f"{path}#t=4"}
    whole = client.get("/api/v1/original", params=asked)
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, content, "video/webm")
    assert whole.headers["accept-ranges"] == "bytes"
    for wanted, first, end in (
        ("0-0", 0, 1),
        ("100-199", 100, 200),
        ("100-", 100, size),
        ("-50", size - 50, size),
    ):
        part = client.get("/api/v1/original", params=asked, headers={"Range": f"bytes={wanted}"})
        assert (part.status_code, part.content) == (206, content[first:end])
        assert part.headers["content-range"] == f"bytes {first}-{end - 1}/{size}"
    for wanted in ("bytes=0-1,4-5", "bytes=-", "lines=0-3", "bytes=a-b"):
        assert client.get("/api/v1/original", params=asked, headers={"Range": wanted}).status_code == 200
    for wanted in (f"{size}-", "9-3", "-0", f"{10**17}-{10**17 + 1}"):
        part = client.get("/api/v1/original", params=asked, headers={"Range": f"bytes={wanted}"})
        assert (part.status_code, part.headers["content-range"]) == (416, f"bytes */{size}")
        assert "is not in the file" in part.json()["error"]


def test_a_range_without_an_end_is_bounded(client, collection, monkeypatch):
    monkeypatch.setattr("selhn.serve.originals.MOST_OF_RANGE", 1000)
    asked = {"id": str(collection.folders[0] / "clip.webm")}
    part = client.get("/api/v1/original", params=asked, headers={"Range": "bytes=50-"})
    assert len(part.content) == 1000
    rest = client.get("/api/v1/original", params={**asked, "download": True}, headers={"Range": "bytes=50-"})
    assert rest.content == (collection.folders[0] / "clip.webm").read_bytes()[50:], (
        "a download that is continued"
    )


def open_scene(page, scene):
    """Ask with a picture of a scene, and open the first answer."""
    page.set_input_files(
        "#file", {"name": "a.png", "mimeType": "image/png", "buffer": encoded(SCENES[scene], "PNG")}
    )
    first = page.locator("[data-place='0'][data-id*='clip.webm'] .open")
    expect(first.locator(".play")).to_have_text(f"0:{4 * scene:02}")
    expect(first.locator("img.come")).to_be_visible()
    first.click()
    expect(page.locator("#detail-video")).to_be_visible()


@needs_chromium
def test_playing(page):
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + 2} pictures")
    expect(page.locator("[data-id$='clip.webm'] .play")).to_have_text("0:12")
    open_scene(page, 1)
    until(page, f"{TIME} === 4")
    expect(page.locator("#detail-score")).to_contain_text("at 0:04")
    expect(page.locator("#detail-facts")).to_contain_text("Length")
    assert page.locator("#detail-facts dd").last.inner_text().endswith("/Pictures/clip.webm")
    page.keyboard.press(" ")
    until(page, f"{TIME} > 4.2")
    page.keyboard.press("f")
    expect(page.locator("#detail-favour")).to_have_attribute("aria-pressed", "true")
    with page.expect_popup() as opened:
        page.locator("#detail-open").click()
    opened.value.wait_for_load_state()
    until(opened.value, "document.querySelector('video')?.readyState > 1")
    opened.value.close()
    with page.expect_download() as saved:
        page.locator("#detail-download").click()
    assert saved.value.suggested_filename == "clip.webm"
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail-video")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("[data-place='0'].loved")).to_be_visible()


@needs_chromium
def test_a_video_that_no_browser_plays(page):
    page.locator("[data-id$='old.avi'] .open").click()
    expect(page.locator("#no-video")).to_be_visible()
    expect(page.locator("#detail-picture")).to_be_visible()
    expect(page.locator("#detail-open")).to_be_hidden()
    expect(page.locator("#detail-download")).to_be_visible()


@needs_chromium
def test_a_video_on_a_phone(open_page, server):
    page = open_page(server.address, **PHONE)
    open_scene(page, 2)
    until(page, f"{TIME} === 8")
    touch(page, *([(300 - 40 * step, 400)] for step in range(6)))
    expect(page.locator("#detail-place")).to_contain_text("2 of")
    expect(page.locator("#detail-video")).to_be_hidden()


@needs_chromium
@pytest.mark.slow
def test_a_video_behind_a_token(open_page, start_server):
    """It is streamed, and opened and downloaded, by the cookie."""
    page = open_page(f"{start_server(videos=1, token='a-long-token').address}/#token=a-long-token")
    page.on("response", lambda answer: "/original" in answer.url and statuses.add(answer.status))
    statuses = set()
    open_scene(page, 1)
    until(page, f"{TIME} === 4")
    assert statuses == {206}
    with page.expect_popup() as opened:
        page.locator("#detail-open").click()
    until(opened.value, "document.querySelector('video')?.readyState > 1")
    with page.expect_download() as saved:
        page.locator("#detail-download").click()
    assert saved.value.suggested_filename == "clip.webm"
