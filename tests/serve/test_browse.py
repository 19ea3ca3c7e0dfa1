"""Browsing and the viewer in a real browser, with pictures of several shapes and days."""

import re

import pytest
from page_driver import PHONE, ask, drop, expect, needs_chromium, touch, until
from picture_cases import encoded, photo
from tiny import NUMBER, SHAPES, WORDS

pytestmark = needs_chromium
MORE = 60
SEEN = """() => [...document.querySelectorAll(".card[data-id]")].map((card) => {
    const { width, height } = card.querySelector(".frame").getBoundingClientRect();
    return [card.dataset.place, card.dataset.id.split("/").at(-1), width, height]; })"""


@pytest.fixture(scope="module")
def server(start_server):
    return start_server(more=MORE)


def test_browsing_ends_with_the_last_picture(page):
    """Only what is near the view is in the document; rows keep the shapes of the pictures."""
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE} pictures")
    assert 0 < page.locator(".open").count() < NUMBER + MORE
    expect(page.locator("[data-place='0'] img.come")).to_be_visible()
    until(
        page,
        f"({SEEN})().every(([place, , width, height]) => place >= {NUMBER} || Math.abs(width / height - 1.5) < 0.02)",
    )
    seen, ended = {}, False
    while not ended:
        ended = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
        until(page, "document.querySelector('.card') && !document.querySelector('.card:not([data-id])')")
        for place, name, width, height in page.evaluate(SEEN):
            seen[int(place)] = name, width / height
        page.evaluate("scrollBy(0, innerHeight)")
        page.wait_for_timeout(50)
    assert sorted(seen) == list(range(NUMBER + MORE))
    assert [seen[place][0] for place in range(NUMBER, NUMBER + 3)] == [
        "more000.png",
        "more001.png",
        "more002.png",
    ]
    shapes = [seen[NUMBER + place][1] for place in range(4)]
    assert shapes == pytest.approx([width / height for width, height in SHAPES], rel=0.02)
    assert seen[0][1] == pytest.approx(1.5, rel=0.02), (
        "without width and height, the shape of the picture that came"
    )


def test_headings_and_the_timeline(page):
    expect(page.locator(".head h2").nth(1)).to_have_text("March 2024")
    scrubber = page.get_by_role("slider", name="Timeline")
    expect(scrubber).to_be_visible()
    page.evaluate("document.getElementById('progress').hidden = false")
    page.evaluate("document.getElementById('progress-list').hidden = false")
    box, files = scrubber.bounding_box(), page.locator("#progress-list").bounding_box()
    assert files["x"] + files["width"] <= box["x"] + 16, "the years are beside the files that were left out"
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2)
    expect(page.locator("[data-place='71'] img.come")).to_be_visible()
    expect(scrubber).to_have_attribute("aria-valuetext", "January 2024")
    scrubber.focus()
    page.keyboard.press("Home")
    until(page, "scrollY < 300")
    expect(page.locator("[data-place='0'] img.come")).to_be_visible()


def test_pictures_stay_while_the_list_is_read_again(page):
    """While a folder is indexed this happens every few seconds."""
    expect(page.locator("[data-place='0'] img.come")).to_be_visible()
    held = []
    page.route(re.compile("/api/v1/items"), lambda route: route.continue_() if held else held.append(route))
    page.evaluate("document.dispatchEvent(new CustomEvent('library-changed'))")
    while not held:
        page.wait_for_timeout(20)
    expect(page.locator("[data-place='0'] img.come")).to_be_visible(timeout=1)
    held[0].continue_()
    until(page, "!document.querySelector('#grid[aria-busy]')")
    expect(page.locator("[data-place='0'] img.come")).to_be_visible(timeout=1)


def test_dates_filter(open_page, page, server):
    page.get_by_label("Dates: any date").click()
    page.get_by_role("button", name="2024", exact=True).click()
    expect(page.locator("#status")).to_contain_text(f"{MORE} pictures")
    assert "from=2024" in page.url
    page.get_by_label("From").fill("2024-02-24")
    expect(page.locator("#status")).to_contain_text("15 pictures")
    page.get_by_label("To", exact=True).fill("2024-02-27")
    expect(page.locator("#status")).to_contain_text("10 pictures")
    page.reload()
    expect(page.locator("#status")).to_contain_text("10 pictures")
    ask(page, WORDS[1])
    expect(page.locator(".card .score")).to_have_count(10)


def test_back_closes_the_picture_and_leaves_the_question(page):
    ask(page, WORDS[2])
    expect(page.locator(".card .score").first).to_be_attached()
    asked = page.url
    page.locator(".open").first.click()
    expect(page.locator("#detail")).to_be_visible()
    page.go_back()
    expect(page.locator("#detail")).to_be_hidden()
    assert page.url == asked
    assert page.input_value("#text") == WORDS[2]
    page.locator(".open").first.click()
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    page.go_back()
    expect(page.locator(".card .score")).to_have_count(0)
    assert page.input_value("#text") == ""


def test_back_from_a_typed_question_is_where_it_was_typed(page):
    page.evaluate("scrollTo(0, 900)")
    below = "(card) => card.getBoundingClientRect().top > 130"
    there = f"[...document.querySelectorAll('.card')].find({below}).dataset.place"
    before = page.evaluate(there)
    page.locator("#text").press_sequentially("a red", delay=20)
    expect(page.locator(".card .score").first).to_be_attached()
    page.locator("#text").press_sequentially(" ball")
    until(page, "location.search === '?text=a+red+ball'")
    page.go_back()
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE} pictures")
    until(page, f"scrollY > 500 && {there} === '{before}'")


def test_a_question_in_the_address_can_be_filtered_by_date(open_page, server):
    page = open_page(f"{server.address}/?text=a+red+ball&from=2024&to=2024")
    expect(page.locator(".card .score").first).to_be_attached()
    expect(page.get_by_label("Dates: 2024")).to_be_visible()
    with page.expect_response(lambda answer: "/api/v1/duplicates" in answer.url) as asked:
        page.get_by_role("button", name="Duplicates").click()
    assert "number=50" in asked.value.url, "however many answers the question has shown"


def test_the_tab_key_stops_in_the_view(page):
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator("[data-place='71'] .open")).to_be_visible()
    expect(page.locator(".open[tabindex='0']")).to_be_in_viewport()


def test_training_has_no_timeline(page):
    expect(page.locator("#scrubber")).to_be_visible()
    page.get_by_role("link", name="Training").click()
    expect(page.locator("#runs-view")).to_be_visible()
    expect(page.locator("#scrubber")).to_be_hidden()


def test_a_filter_in_the_address_counts(open_page, server):
    page = open_page(f"{server.address}/?where=colour+%3D+%22red%22")
    expect(page.locator(".open")).to_have_count(3)
    page.get_by_label("Remove the filter").click()
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE} pictures")
    assert "where" not in page.url


def test_a_broken_file_has_no_broken_picture(open_page, server):
    page = open_page(server.address, expect_errors=True)
    page.wait_for_selector(".open")
    drop(page, b"no picture", "image/png")
    expect(page.locator("#reason")).to_contain_text("cannot be read as a picture")
    expect(page.locator(".chip")).to_contain_text("Your picture")
    expect(page.locator(".chip img")).to_have_count(0)


SCALE = "new DOMMatrix(getComputedStyle(document.getElementById('figure')).transform).a"


def tap_twice(page, wanted):
    """Again where a busy machine was too slow for two taps to be one gesture."""
    for _ in range(10):
        touch(page, [(200, 400)], times=2)
        page.wait_for_timeout(600)
        if page.evaluate(wanted):
            return
    raise AssertionError(f"never true: {wanted}")


def test_swiping_and_zooming_on_a_phone(open_page, server):
    page = open_page(server.address, **PHONE)
    page.wait_for_selector(".card[data-id] .open")
    page.locator(".open").first.tap()
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER + MORE}")
    across = [[(300 - 40 * step, 400)] for step in range(6)]
    touch(page, *across)
    expect(page.locator("#detail-place")).to_have_text(f"2 of {NUMBER + MORE}")
    touch(page, *across[::-1])
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER + MORE}")
    touch(page, *([(190 - 15 * step, 400), (200 + 15 * step, 400)] for step in range(6)))
    until(page, f"{SCALE} > 3")
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER + MORE}")
    for wanted in (f"{SCALE} === 1", f"{SCALE} > 2", f"{SCALE} === 1"):
        tap_twice(page, wanted)
    touch(page, *([(200, 300 + 40 * step)] for step in range(6)))
    expect(page.locator("#detail")).to_be_hidden()


def test_the_viewer(page):
    ask(page, WORDS[0])
    page.locator(".open[aria-label='more002.png']").click()
    facts = page.locator("#detail-facts")
    expect(facts).to_contain_text("Friday, 1 March 2024, 11:58")
    expect(facts).to_contain_text("Tiny One")
    expect(facts).to_contain_text("50 × 50")
    page.mouse.move(400, 400)
    page.mouse.wheel(0, -400)
    until(page, f"{SCALE} > 1.5")
    page.keyboard.press("0")
    until(page, f"{SCALE} === 1")
    with page.expect_download() as download:
        page.click("#detail-download")
    assert download.value.suggested_filename == "more002.png"
    with page.context.expect_page() as opened:
        page.click("#detail-open")
    assert opened.value.url.endswith("more002.png")
    opened.value.close()
    page.keyboard.press("i")
    expect(page.locator("#told")).to_be_hidden()
    page.keyboard.press("i")
    expect(page.locator("#told")).to_be_visible()


def test_adding_selecting_and_removing(open_page, server):
    """On a server of its own state: what is added is removed again."""
    page = open_page(server.address, expect_errors=True)
    page.wait_for_selector(".card[data-id]")
    files = [
        {"name": f"{seed}.png", "mimeType": "image/png", "buffer": encoded(photo(seed), "PNG")}
        for seed in (91, 92)
    ]
    files.append({"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.set_input_files("#upload-files", files)
    expect(page.locator("#upload-told")).to_have_text("2 pictures added, 1 left out:")
    expect(page.locator("#upload-refused")).to_contain_text("broken.png: This file cannot be read")
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE + 2} pictures")
    expect(page.locator(".card[data-id*='uploads']")).to_have_count(2)
    page.locator(".card").nth(0).hover()
    page.locator(".circle").nth(0).click()
    page.locator(".open").nth(1).click(modifiers=["Shift"])
    expect(page.locator("#select-count")).to_have_text("2 selected")
    page.click("#select-remove")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".chosen")).to_have_count(2)
    page.click("#select-remove")
    page.locator("#sure").get_by_role("button", name="Remove").click()
    expect(page.locator("#status")).to_have_text("2 pictures removed.")
    expect(page.locator("#selection")).to_be_hidden()
    expect(page.locator(".card[data-id*='uploads']")).to_have_count(0)
    assert not list((server.folder / "Pictures" / "uploads").iterdir()), (
        "files that were added here are deleted"
    )


def test_a_long_press_selects_and_the_viewer_removes(open_page, server):
    page = open_page(server.address, **PHONE)
    expect(page.locator(".open").first).to_be_visible()  # the page listens
    page.set_input_files(
        "#upload-files", {"name": "93.png", "mimeType": "image/png", "buffer": encoded(photo(93), "PNG")}
    )
    expect(page.locator(".card[data-id*='uploads'] .circle")).to_have_count(1)
    box = page.locator(".open").first.bounding_box()
    session = page.context.new_cdp_session(page)
    point = {"x": box["x"] + 40, "y": box["y"] + 40}
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
    expect(page.locator(".chosen")).to_have_count(1)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.locator("#select-none").tap()
    expect(page.locator(".chosen")).to_have_count(0)
    page.locator(".card[data-id*='uploads'] .open").tap()
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER + MORE + 1}")
    page.locator("#detail-delete").tap()
    page.locator("#sure").get_by_role("button", name="Remove").tap()
    expect(page.locator("#detail-place")).to_have_text(f"1 of {NUMBER + MORE}")  # the next one
    page.locator("#detail-close").tap()
    expect(page.locator("#status")).to_have_text("1 picture removed.")


def test_the_years_may_come_late(open_page, server):
    """They are asked for after the pictures; what is said of these stays."""
    page, held = open_page(server.address), []
    page.route(re.compile("/timeline$"), lambda route: held.append(route))
    page.goto(f"{server.address}/?from=1990")
    until(page, "document.querySelector('.card')")
    page.wait_for_timeout(300)
    expect(page.locator("#status")).to_contain_text("pictures.", timeout=100)
    held[0].continue_()
    expect(page.get_by_label("Dates: from 1990")).to_be_visible()


def test_favourites_and_albums(open_page, server):
    page = open_page(server.address, expect_errors=True)
    page.wait_for_selector(".card[data-id] .open")
    page.locator(".open").first.click()
    expect(page.locator("#detail")).to_be_visible()
    page.keyboard.press("f")
    expect(page.locator("#detail-favour")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#detail-facts")).to_contain_text("Favourites")
    page.keyboard.press("Escape")
    expect(page.locator(".loved")).to_have_count(1)
    for place in (1, 2):
        page.locator(".open").nth(place).hover()
        page.locator(".circle").nth(place).click()
    page.click("#select-album")
    page.fill("#albums-name", "Tri p")
    page.keyboard.press("Enter")
    expect(page.locator("#albums-list button")).to_have_count(2)
    page.locator("#albums-list button", has_text="Favourites").click()
    expect(page.locator("#albums-list [aria-pressed='true']")).to_have_count(2)
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".loved")).to_have_count(3)
    page.keyboard.press("Escape")
    page.get_by_label("Album", exact=True).select_option("Tri p")
    expect(page.locator("#status")).to_contain_text("2 pictures in Tri p.")
    page.reload()
    page.get_by_role("button", name="Rename").click()
    page.fill("#albums-name", "Favourites")
    page.keyboard.press("Enter")
    expect(page.locator("#albums-wrong")).to_contain_text("already")
    page.fill("#albums-name", "Trip")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("2 pictures in Trip.")
    page.get_by_role("button", name="Delete album").click()
    page.locator("#sure-yes").click()
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE} pictures.")
    page.get_by_label("Album", exact=True).select_option("Favourites")
    expect(page.locator("#status")).to_contain_text("3 pictures in Favourites.")
    expect(page.locator(".loved img.come")).to_have_count(3)
    page.locator(".open").first.focus()
    page.evaluate("document.querySelectorAll('.card img')[1].kept = true")
    page.keyboard.press("f")
    expect(page.locator("#status")).to_contain_text("2 pictures in Favourites.")
    expect(page.locator(".open").first).to_be_focused()
    until(page, "document.querySelector('.card img')?.kept")  # pictures that stay are not loaded again


def test_duplicates_in_groups(page):
    with page.expect_response(
        lambda answer: "/duplicates" in answer.url and answer.json()["state"] == "ready"
    ) as ready:
        page.get_by_role("button", name="Duplicates").click()
    found = ready.value.json()
    expect(page.locator("#status")).to_contain_text(f"{found['total']} group")
    expect(page.locator(".head h2").first).to_contain_text(str(found["groups"][0]["count"]))
    expect(page.locator(".card .note").first).to_contain_text("×")
    page.get_by_role("button", name="Select all but the first of each").click()
    spare = sum(len(group["items"]) - 1 for group in found["groups"])
    expect(page.locator("#select-count")).to_have_text(f"{spare} selected")
    expect(page.locator("[data-place='0']")).not_to_have_class(re.compile("chosen"))
    page.keyboard.press("Escape")
    page.locator(".open").first.click()
    expect(page.locator("#detail-place")).to_contain_text("1 of")
    page.keyboard.press("Escape")
    page.go_back()
    expect(page.locator("#status")).to_contain_text(f"{NUMBER + MORE} pictures")
