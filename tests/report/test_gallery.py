from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from run_cases import section

from selhn.data import Split, load_data
from selhn.report.page import page
from selhn.report.retrievals import Answer, Example, Examples

ANSWERS = (Answer(0, 1, 0.9, False), Answer(1, 2, 0.8, True))
FAR = (Answer(0, 1, 0.9, False), Answer(1, 37, 0.1, True))


@pytest.fixture
def examples(record):
    whole = load_data("world", images=100).test
    items = whole.first(2)
    items = Split("test", items.features, ["<script>alert(1)</script>", "a dog", "a cat"], torch.tensor([0, 0, 1]),
                  ["a&b.jpg", "second"])  # fmt: skip
    found = {"t2i": (Example(0, ANSWERS, (("other", 12),)),), "i2t": (Example(1, ANSWERS, ()),)}
    missed = {"t2i": (Example(1, FAR, ()),), "i2t": ()}
    return Examples(
        record(), items, whole, found, missed, {"t2i": (1, 3), "i2t": (1, 2)}, {"begun": "no weights"}
    )


@pytest.fixture
def gallery(monkeypatch):
    """The examples on the page, with pictures from a function."""

    def shown(examples, picture=lambda row: None):
        monkeypatch.setattr("selhn.report.page.shown_picture", lambda split, folder: picture)
        return section(page([examples.run], examples), "examples")

    return shown


def tree(html):
    return ElementTree.fromstring(f"<div>{html}</div>")


def test_captions_and_names_stay_text(examples, gallery):
    html = gallery(examples)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "a&amp;b.jpg" in html


def test_right_answers_are_marked_by_more_than_colour(examples, gallery):
    parsed = tree(gallery(examples))
    right = [one for one in parsed.iter("li") if "right" in (one.get("class") or "").split()]
    assert len(right) == 3
    assert all("✓ right" in "".join(one.itertext()) for one in right)
    wrong = [one for one in parsed.iter("li") if one not in right]
    assert wrong
    assert not any("✓" in "".join(one.itertext()) for one in wrong)
    assert [one.get("class") for one in right].count("right far") == 1


def test_what_is_said(examples, gallery):
    said = " ".join("".join(tree(gallery(examples)).itertext()).split())
    assert "on the first 2 images of test" in said
    assert "Found: the first right answer is in place 2; other has it in place 12." in said
    assert "Missed: the first right answer is in place 37." in said
    assert "Not compared: begun (no weights)." in said
    assert "A right answer comes first for 1 of 3 queries." in said
    assert "Missed: no query." in said
    everything = replace(examples, whole=examples.split, in_the_way={})
    assert "on all 2 images of test" in gallery(everything)
    none = section(page([examples.run], {"a": "<x>", "b": "y"}), "examples")
    assert "could be opened: a (&lt;x&gt;); b (y)." in none


def test_pictures_have_words(examples, gallery):
    html = gallery(examples, lambda row: f"data:image/jpeg;base64,{row}" if row else None)
    assert '<img src="data:image/jpeg;base64,1" alt="second: a cat">' in html
    assert '<span class="name">a&amp;b.jpg</span>' in html, "without a picture, its name"
