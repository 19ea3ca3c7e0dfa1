"""Browsing and the viewer in a real browser, with pictures of several shapes and days."""

import pytest
from page_driver import ask, drop, expect, needs_chromium
from tiny import NUMBER, WORDS

pytestmark = needs_chromium
MORE = 60


@pytest.fixture(scope="module")
def server(start_server):
    return start_server(more=MORE)


@pytest.fixture
def page(open_page, server):
    page = open_page(server.address)
    page.wait_for_selector(".open")
    return page


def test_browsing_ends_with_the_last_picture(page):
    while page.locator("#more").is_visible():
        before = page.locator(".open").count()
        page.click("#more")
        expect(page.locator(".open").nth(before)).to_be_visible()
    assert page.locator(".open").count() == NUMBER + MORE


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


def test_a_filter_in_the_address_counts(open_page, server):
    page = open_page(f"{server.address}/?where=colour+%3D+%22red%22")
    expect(page.locator(".open")).to_have_count(3)
    page.get_by_label("Remove the filter").click()
    expect(page.locator(".open").nth(4)).to_be_visible()
    assert "where" not in page.url


def test_a_broken_file_has_no_broken_picture(open_page, server):
    page = open_page(server.address, expect_errors=True)
    page.wait_for_selector(".open")
    drop(page, b"no picture", "image/png")
    expect(page.locator("#reason")).to_contain_text("cannot be read as a picture")
    expect(page.locator(".chip")).to_contain_text("Your picture")
    expect(page.locator(".chip img")).to_have_count(0)
