"""From nothing to the page with one command on 500 photographs, and all that a person does there.

    PHOTOS=FOLDER PICTURES=FOLDER pytest -n0 -m slow tests/serve/test_walk.py

takes photographs of the first folder and the ready model, and keeps pictures of the page in the second one.
Without them the photographs are drawn and the models small.
"""

import os
import random
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from page_driver import PHONE, ask, expect, needs_chromium, touch, until
from picture_cases import encoded, exif_of, photo, video
from PIL import Image

pytestmark = [needs_chromium, pytest.mark.slow]
HERE = Path(__file__).parent
NUMBER = 500
PROGRAM = ["-m", "selhn"] if "PHOTOS" in os.environ else [str(HERE / "tiny_photos.py")]
SCALE = "new DOMMatrix(getComputedStyle(document.getElementById('figure')).transform).a"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """In four folders, with the dates of trips over several years; the last is a smaller copy of the first."""
    folder = tmp_path_factory.mktemp("walk") / "Pictures"
    real = sorted(Path(os.environ["PHOTOS"]).rglob("*.jpg"))[:NUMBER] if "PHOTOS" in os.environ else None
    random.seed(1)
    taken = datetime(2017, 3, 4, 9)
    for number in range(NUMBER):
        taken += timedelta(
            minutes=random.randint(1, 25), days=random.randint(5, 140) * (random.random() < 0.035)
        )
        image = (
            Image.open(real[number % 499])
            if real
            else photo(number % 499, random.choice([(60, 40), (40, 60), (50, 50)]))
        )
        path = folder / f"trip {number // 125}" / f"IMG_{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number == NUMBER - 1:
            image = image.resize((image.width * 4 // 5, image.height * 4 // 5))
        image.convert("RGB").save(path, quality=90, exif=exif_of(taken=taken.strftime("%Y:%m:%d %H:%M:%S")))
    return folder


def own(photographs):
    """The environment of a user of these photographs."""
    home = photographs.parent
    found = {
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_DATA_HOME": str(home / "share"),
        "OMP_NUM_THREADS": "1",
    }
    return found | {"PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parents[1] / "src")))}


@pytest.fixture(scope="module")
def address(photographs):
    """Of the page that the command opens, before anything is indexed."""
    command = [sys.executable, *PROGRAM, "photos", str(photographs), "--writable", "--no-browser"]
    with subprocess.Popen(
        command, env={**os.environ, **own(photographs)}, text=True, stdout=subprocess.PIPE
    ) as child:
        yield next(word for word in child.stdout.readline().split() if word.startswith("http"))
        child.send_signal(signal.SIGTERM)


def keep(page, name):
    if "PICTURES" in os.environ:
        page.wait_for_timeout(600)
        page.screenshot(path=Path(os.environ["PICTURES"]) / f"{name}.png")


def test_a_walk(open_page, address, photographs):
    page = open_page(address)
    expect(page.locator("#facts")).to_contain_text(f"{NUMBER} pictures", timeout=600_000)
    page.reload()
    expect(page.locator("img.come").first).to_be_visible()
    keep(page, "desktop")

    seen, ended = set(), False
    while not ended:
        ended = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
        until(page, "document.querySelector('.card') && !document.querySelector('.card:not([data-id])')")
        seen |= set(page.evaluate("[...document.querySelectorAll('.card')].map((card) => card.dataset.id)"))
        page.evaluate("scrollBy(0, innerHeight)")
        page.wait_for_timeout(30)
    assert {Path(name).name for name in seen} == {path.name for path in photographs.rglob("*.jpg")}
    keep(page, "timeline")

    page.get_by_label("Dates: any date").click()
    page.get_by_role("button", name="2017", exact=True).click()
    expect(page.locator(".head h2").first).to_contain_text("2017")
    expect(page.locator("#status")).not_to_contain_text(f"{NUMBER} pictures")
    page.get_by_role("button", name="Any date").click()
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_contain_text(f"{NUMBER} pictures")

    page.evaluate("scrollTo(0, 0)")
    page.locator("[data-place='2'] .open").click()
    page.keyboard.press("f")
    keep(page, "viewer")
    page.keyboard.press("+")
    until(page, f"{SCALE} > 1.2")
    page.go_back()
    expect(page.locator("#detail")).to_be_hidden()
    page.get_by_label("Album", exact=True).select_option("Favourites")
    expect(page.locator("#status")).to_have_text("1 picture in Favourites.")
    keep(page, "favourites")
    page.get_by_label("Album", exact=True).select_option("")

    new = {"name": "new.jpg", "mimeType": "image/jpeg", "buffer": encoded(photo(9000, (300, 200)))}
    page.set_input_files("#upload-files", new)
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + 1} pictures")
    page.locator(".card[data-id*='uploads'] .open").click()
    page.keyboard.press("Delete")
    page.locator("#sure-yes").click()
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER}")
    page.keyboard.press("Escape")
    (photographs / "clip.webm").write_bytes(
        video([photo(9001, (96, 64)), photo(9002, (96, 64))], "webm", "libvpx-vp9")
    )
    subprocess.run(
        [sys.executable, *PROGRAM, "index", str(photographs)],
        env={**os.environ, **own(photographs)},
        check=True,
    )
    expect(page.locator("#facts")).to_contain_text(f"{NUMBER + 1} pictures", timeout=60_000)
    page.reload()
    page.locator(".card[data-id$='clip.webm'] .open").click()
    expect(page.locator("#detail-video")).to_be_visible()
    page.keyboard.press(" ")
    until(page, "document.getElementById('detail-video').currentTime > 0.2")
    keep(page, "video")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Duplicates").click()
    expect(page.locator("#status")).to_contain_text("group")
    if "PHOTOS" in os.environ:  # to the small models most drawn pictures are alike
        expect(page.locator("[data-id$='IMG_0000.jpg'] + [data-id$='IMG_0499.jpg']")).to_be_visible()
        expect(page.locator(".head h2")).to_have_text("2 almost the same")
    keep(page, "duplicates")
    ask(page, "a dog runs through the grass")
    keep(page, "search")


def test_a_walk_on_a_phone(open_page, address):
    page = open_page(address, color_scheme="dark", device_scale_factor=2, **PHONE)
    expect(page.locator("#facts")).to_contain_text(f"{NUMBER + 1} pictures", timeout=600_000)
    expect(page.locator("img.come").first).to_be_visible()
    keep(page, "phone")
    page.locator("[data-place='1'] .open").tap()
    touch(page, *([(300 - 40 * step, 400)] for step in range(6)))
    expect(page.locator("#detail-place")).to_have_text(f"3 of {NUMBER + 1}")
    touch(page, *([(190 - 15 * step, 400), (200 + 15 * step, 400)] for step in range(6)))
    assert page.evaluate(SCALE) > 3
    keep(page, "phone_zoomed")
    page.go_back()
    expect(page.locator("#detail")).to_be_hidden()


def test_in_the_dark(open_page, address):
    page = open_page(address, color_scheme="dark")
    expect(page.locator("img.come").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 21, 19)"
    keep(page, "dark")
