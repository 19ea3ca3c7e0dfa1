"""The page in a real browser: asking, filters, keyboard, runs."""

import json
import re

import pytest
import torch
from page_driver import PHONE, ask, captions, drop, needs_chromium, playwright, until
from picture_cases import encoded, photo
from tiny import NUMBER, WORDS, small_model

from selhn.export import towers_of
from selhn.pictures.how_far import HowFarFile
from selhn.pictures.picture_report import REPORT_FILE
from selhn.search import Index, Item
from selhn.serve.access import Token, redirect

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def server(start_server):
    return start_server()


def test_it_begins_with_what_there_is(page):
    assert page.title() == "Tiny pictures · selhn"
    assert page.locator("h1").inner_text() == "Tiny pictures"
    playwright.expect(page.locator(".card .caption")).to_have_count(NUMBER)
    assert captions(page) == WORDS[:NUMBER][::-1], "the newest first"
    assert page.locator(".card .score").count() == 0
    playwright.expect(page.locator("#status")).to_contain_text("12 pictures")
    until(
        page, "[...document.querySelectorAll('.frame img')].slice(0, 4).every((one) => one.naturalWidth > 0)"
    )
    playwright.expect(page.locator("#text")).to_be_focused()


def test_typing_finds(page):
    found = ask(page, WORDS[2])
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    assert captions(page) == found
    playwright.expect(page.locator("#status")).to_contain_text(f"closest to “{WORDS[2]}”")
    assert "text=" in page.url
    page.reload()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    assert captions(page) == found
    assert page.input_value("#text") == WORDS[2]
    page.go_back()
    playwright.expect(page.locator(".card .score")).to_have_count(0)


def test_what_is_typed_is_asked_without_enter(page):
    with page.expect_response(re.compile(r"/api/v1/search\?text=a\+red\+dog")):
        page.type("#text", "a red dog")
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)


def test_a_picture_that_is_dropped_finds_itself(page):
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        drop(page, encoded(photo(5, (60, 40)), "PNG"))
    assert page.evaluate("window.zone"), "where to drop it was shown"
    assert page.locator("#drop").is_hidden()
    assert answered.value.request.headers["content-type"] == "image/jpeg", "redrawn, without EXIF"
    playwright.expect(page.locator(".chip")).to_contain_text("Your picture")
    playwright.expect(page.locator(".card .caption").first).to_have_text(WORDS[5])
    with page.expect_response(lambda answer: answer.request.method == "POST" and "text=" in answer.url):
        page.fill("#text", "a red dog")
        page.press("#text", "Enter")
    playwright.expect(page.locator("#status")).to_contain_text("“a red dog” and your picture")
    page.click(".chip button")
    playwright.expect(page.locator(".chip")).to_have_count(0)


def test_a_picture_that_is_chosen_or_pasted(page):
    content = encoded(photo(7, (60, 40)), "PNG")
    page.set_input_files("#file", {"name": "7.png", "mimeType": "image/png", "buffer": content})
    playwright.expect(page.locator(".card .caption").first).to_have_text(WORDS[7])
    page.keyboard.press("Escape")
    page.evaluate(
        """(bytes) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(bytes)], "3.png", { type: "image/png" }));
            const how = { clipboardData: carried, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new ClipboardEvent("paste", how));
        }""",
        list(encoded(photo(3, (60, 40)), "PNG")),
    )
    playwright.expect(page.locator(".card .caption").first).to_have_text(WORDS[3])


def test_more_like_this_and_less(page):
    page.locator(".open").nth(3).click()
    like = page.locator("#detail-caption").inner_text()
    playwright.expect(page.locator("#detail-less")).to_be_hidden()
    page.locator("#detail-like").click()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER - 1)
    assert like not in captions(page)
    playwright.expect(page.locator(".chip")).to_contain_text("Like this")
    page.keyboard.press("Escape")
    playwright.expect(page.locator(".card .score")).to_have_count(0)
    best = ask(page, WORDS[0])[0]
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    page.locator(".open").first.click()
    with page.expect_response(lambda answer: "like_weight=-0" in answer.url):
        page.locator("#detail-less").click()
    playwright.expect(page.locator(".chip")).to_contain_text("Less like this")
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER - 1)
    assert best not in captions(page)
    assert "unlike=" in page.url


def test_filters(page):
    page.select_option("select[aria-label='Filter by colour']", index=2)
    playwright.expect(page.locator(".open")).to_have_count(3)
    found = ask(page, WORDS[2])
    assert set(found) == {WORDS[1], WORDS[5], WORDS[9]}
    page.reload()
    playwright.expect(page.locator(".open")).to_have_count(3)
    page.select_option("select[aria-label='Filter by colour']", index=0)
    playwright.expect(page.locator(".open")).to_have_count(NUMBER)


def test_the_keyboard_is_enough(page):
    page.locator("h1").click()
    page.keyboard.press("/")
    playwright.expect(page.locator("#text")).to_be_focused()
    assert page.input_value("#text") == ""
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator(".open").nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator(".open").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    below, first = (page.locator(name).bounding_box() for name in (".open:focus", ".open >> nth=1"))
    assert below["y"] > first["y"]
    assert abs(below["x"] - first["x"]) < first["width"] + below["width"]
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#detail")).to_be_visible()
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#detail-caption")).to_have_text(WORDS[NUMBER - 2])
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#detail")).to_be_hidden()
    playwright.expect(page.locator(".open").nth(1)).to_be_focused()
    assert page.locator(".open[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#text")).to_be_focused()


def test_a_picture_up_close(page):
    ask(page, "a red dog")
    page.locator(".card", has_text=WORDS[0]).first.locator(".open").click()
    detail = page.locator("#detail")
    playwright.expect(detail.locator("h2").first).to_have_text(WORDS[0])
    playwright.expect(detail.locator("#detail-credit a")).to_have_count(2)
    credit = detail.locator("#detail-credit a").last
    assert credit.inner_text() == "CC BY 2.0"
    assert credit.get_attribute("href") == "https://example.org/by"
    assert "noreferrer" in credit.get_attribute("rel")
    words = detail.locator("#look-words button")
    playwright.expect(words).to_have_count(2)
    words.nth(1).hover()
    assert words.nth(1).get_attribute("aria-pressed") == "true"
    weights = page.evaluate(
        "[...document.querySelectorAll('#boxes i')].map((box) => Number(box.style.getPropertyValue('--weight')))"
    )
    assert len(weights) == 9
    assert len(set(weights)) > 1
    detail.locator("#detail-like").click()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER - 1)


def test_what_cannot_be_answered_is_told_and_mended(open_page, server):
    page = open_page(server.address, expect_errors=True)
    page.wait_for_selector(".open")
    page.fill("#text", "qwertz")
    page.press("#text", "Enter")
    playwright.expect(page.locator("#problem")).to_be_visible()
    playwright.expect(page.locator("#reason")).to_contain_text("The model knows no word")
    playwright.expect(page.locator("#again")).to_be_hidden()
    playwright.expect(page.locator(".open")).to_have_count(0)
    page.fill("#text", "a red dog")
    page.press("#text", "Enter")
    playwright.expect(page.locator("#problem")).to_be_hidden()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    page.route("**/api/v1/search**", lambda route: route.abort())
    page.fill("#text", "a blue dog")
    page.press("#text", "Enter")
    playwright.expect(page.locator("#reason")).to_contain_text("does not answer")
    page.unroute("**/api/v1/search**")
    page.click("#again")
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    drop(page, b"no picture", "image/png")
    playwright.expect(page.locator("#reason")).to_contain_text("cannot be read as a picture")


def test_nothing_fits_and_loading_are_said(open_page, server):
    page = open_page(server.address)
    page.wait_for_selector(".open")
    page.route("**/api/v1/search**", lambda route: route.fulfill(json={"answers": []}))
    page.fill("#text", "a red dog")
    page.press("#text", "Enter")
    playwright.expect(page.locator("#empty")).to_contain_text("Nothing fits")
    page.unroute("**/api/v1/search**")
    waiting = []
    page.route("**/api/v1/search**", lambda route: waiting.append(route))
    page.fill("#text", "a blue dog")
    page.press("#text", "Enter")
    playwright.expect(page.locator(".skeleton").first).to_be_visible()
    playwright.expect(page.locator("#grid")).to_have_attribute("aria-busy", "true")
    waiting[0].continue_()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    assert page.locator("#grid").get_attribute("aria-busy") is None


def test_what_fits_is_shown_first(open_page, server):
    page = open_page(server.address)
    page.wait_for_selector(".open")

    def answer(fits, unknown=()):
        def fulfil(route):
            found = route.fetch().json()
            for row, hit in enumerate(found["answers"]):
                hit["fit"] = 0.9 if row < fits else 0.2
            route.fulfill(json={**found, "fits": fits, "unknown": unknown})

        page.unroute_all()
        page.route("**/api/v1/search**", fulfil)

    answer(2)
    ask(page, "a red dog")
    playwright.expect(page.locator(".card .score")).to_have_count(2)
    playwright.expect(page.locator("#status")).to_have_text("2 pictures for “a red dog”, best first.")
    assert page.evaluate("document.querySelector('.fit i').style.width") == "90%", "absolute"
    page.get_by_role("button", name="Show weaker matches").click()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER)
    playwright.expect(page.locator("#more")).to_be_hidden()
    answer(0, ["ein", "roter"])
    ask(page, "ein roter dog")
    playwright.expect(page.locator("#status")).to_have_text(
        "The model reads English and hardly knows “ein”, “roter”. No sure match. The nearest pictures:"
    )


def test_names_that_look_like_markup_stay_names(open_page, server):
    page = open_page(server.address)
    page.wait_for_selector(".open")
    bad = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    facts = {"license": bad, "license_url": "javascript:window.hacked=1", bad: bad}
    hit = {
        "id": bad,
        "captions": [bad],
        "metadata": facts,
        "picture": False,
        "score": 1,
        "kind": "image",
        "text": None,
    }
    page.route("**/api/v1/search**", lambda route: route.fulfill(json={"answers": [hit]}))
    page.fill("#text", bad)
    page.press("#text", "Enter")
    playwright.expect(page.locator(".open")).to_have_count(1)
    playwright.expect(page.locator(".card .caption")).to_have_text(bad)
    page.click(".open")
    playwright.expect(page.locator("#detail-caption")).to_have_text(bad)
    assert page.locator("#detail-credit a").count() == 0, "a link goes to the web or nowhere"
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(open_page, server, scheme):
    page = open_page(server.address, color_scheme=scheme, **PHONE)
    page.wait_for_selector(".open")
    # innerWidth grows with what sticks out; the screen does not.
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing sticks out"
    boxes = [page.locator(".card").nth(row).bounding_box() for row in (0, 1, 2)]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"], "two in a row"
    page.locator(".open").first.tap()
    playwright.expect(page.locator("#detail")).to_be_visible()
    assert page.locator("#detail").bounding_box()["width"] == 390
    playwright.expect(page.locator("#told")).to_be_hidden()
    for name in ("close", "info", "next", "download"):
        box = page.locator(f"#detail-{name}").bounding_box()
        assert min(box["width"], box["height"]) >= 35, name
    page.locator("#detail-info").tap()
    page.locator("#detail-like").tap()
    playwright.expect(page.locator(".card .score")).to_have_count(NUMBER - 1)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def luminance(colour):
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(open_page, server, scheme):
    """A contrast of 4.5 at least, as WCAG AA asks for."""
    page = open_page(server.address, color_scheme=scheme)
    page.wait_for_selector(".open")
    pairs = page.evaluate("""() => {
        const behind = (one) => { for (; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (!/, 0\\)$|transparent/.test(colour)) return colour; } };
        return ["h1", ".pill", ".head h2", ".head span", "#status", "#facts", ".foot a", "select", "#show-keys"]
            .map((name) => [name, document.querySelector(name)])
            .map(([name, one]) => [name, getComputedStyle(one).color, behind(one)]); }""")
    for name, front, back in pairs:
        light, dark = sorted([luminance(front), luminance(back)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{name}: {front} on {back}"


def test_a_run_as_it_goes(open_page, server):
    folder = server.folder / "runs" / "live"
    folder.mkdir(parents=True)

    def write(first, last, loss):
        with (folder / "log.jsonl").open("a") as log:
            for step in range(first, last):
                numbers = {"loss_per_anchor": loss, "delta_s": 0.001, "separated": 0.1, "spread": 0.001}
                log.write(json.dumps({"step": step, "epoch": 0, **numbers}) + "\n")
            log.write(json.dumps({"step": last, "epoch": 0, "dev": {"rsum": 12.5 * last / 100}}) + "\n")

    write(1, 100, 0.21)
    page = open_page(f"{server.address}/#runs")
    playwright.expect(page.locator(".run-list")).to_contain_text("live")
    playwright.expect(page.locator("h1")).to_have_text("Training runs")
    page.wait_for_selector(".plot .line", state="attached")
    assert page.locator(".chart").count() == 4
    length = "document.querySelector('.plot .line').getAttribute('points').split(' ').length"
    assert page.evaluate(length) == 99
    reads = []
    page.on("request", lambda request: "/runs/log" in request.url and reads.append(request.url))
    write(100, 800, 0.2)
    until(page, f"{length} > 700")
    assert all("after=0" not in address for address in reads), "only what is new is read"
    playwright.expect(page.locator(".verdict")).to_contain_text("stalled since step 1")
    playwright.expect(page.locator(".verdict")).to_contain_text("What helps")
    page.locator(".plot").first.hover()
    playwright.expect(page.locator(".legend caption").first).to_contain_text("step")
    page.click("#to-search")
    playwright.expect(page.locator("#search-view")).to_be_visible()


def test_the_page_of_the_api(open_page, server):
    page = open_page(f"{server.address}/docs")
    playwright.expect(page.locator("article")).to_have_count(23)
    playwright.expect(page.locator("article").first).to_contain_text("curl")


def test_a_service_with_a_token(open_page, start_server):
    server = start_server(token="a-long-secret")
    page = open_page(server.address, expect_errors=True)
    playwright.expect(page.locator("#login")).to_be_visible()
    page.fill("#token", "wrong-secret")
    page.press("#token", "Enter")
    playwright.expect(page.locator("#login")).to_be_visible()
    page.fill("#token", "a-long-secret")
    page.press("#token", "Enter")
    playwright.expect(page.locator(".open")).to_have_count(NUMBER)
    until(page, "document.querySelector('.frame img')?.naturalWidth > 0")
    assert page.locator(".frame img").first.get_attribute("src").startswith("/api/v1/picture?")
    handed = open_page(f"{server.address}/#token=a-long-secret")
    playwright.expect(handed.locator(".open")).to_have_count(NUMBER)
    assert "secret" not in handed.url


@pytest.mark.parametrize("token", ["100%sure", "a%20 b/#?=&c"])
def test_a_token_with_odd_letters(open_page, start_server, token):
    server = start_server(token=token)
    with redirect(Token(token).link(server.address)) as opened:
        handed = open_page(opened)
        handed.wait_for_url(f"{server.address}/")
        playwright.expect(handed.locator(".open")).to_have_count(NUMBER)
    typed = open_page(f"{server.address}/#token=100%sure", expect_errors=token != "100%sure")
    playwright.expect(typed.locator(".open" if token == "100%sure" else "#login[open]").first).to_be_visible()


def test_an_index_from_elsewhere_says_why_it_shows_no_pictures(open_page, start_server, page):
    playwright.expect(page.locator("#unshown")).to_be_hidden()
    other = open_page(start_server(unnamed="yes").address)
    playwright.expect(other.locator("#unshown")).to_contain_text("no folder of pictures was named")
    playwright.expect(other.locator(".open")).to_have_count(NUMBER)
    assert not other.locator(".frame img").count()
    assert ask(other, WORDS[2]), "it can be searched"


def test_pictures_come_back_after_a_restart(open_page, start_server):
    """The service forgets its cookies; the page renews its own when a picture does not come."""
    server = start_server(token="a-long-secret")
    page = open_page(f"{server.address}/#token=a-long-secret", expect_errors=True)
    until(page, "document.querySelector('.frame img')?.naturalWidth > 0")
    page.context.clear_cookies()
    page.wait_for_timeout(1100)  # an error is not looked at twice within a second
    page.evaluate("document.querySelector('.frame img').src += '&again'")
    until(page, "document.querySelector('.frame img')?.naturalWidth > 0")


def test_indexing_is_shown(open_page, server):
    """Another process adds pictures to the index: the strip says how far it is, and new pictures appear."""
    index = Index.load(server.folder / "pictures.index", towers_of(small_model()))
    page = open_page(server.address)
    page.wait_for_selector(".open")
    playwright.expect(page.locator("#progress")).to_be_hidden()
    with HowFarFile(index.path, 12, 8):
        (index.path / REPORT_FILE).write_text('{"left out": [["cut.png", "is cut off"]]}')
        page.reload()
        playwright.expect(page.locator("#progress")).to_contain_text("12 of 20 pictures")
        new = next(index.records())
        index.add([Item("new", torch.zeros(1, 4), None, ("a new picture",), new.metadata)])
        playwright.expect(page.locator(".card")).to_have_count(13)
    playwright.expect(page.locator("#progress-words")).to_have_text("13 pictures indexed.")
    page.click("text=1 file left out")
    playwright.expect(page.locator("#progress-list")).to_have_text("cut.png is cut off")
    page.click("#progress-close")
    playwright.expect(page.locator("#progress")).to_be_hidden()
    index.delete(["new"])
