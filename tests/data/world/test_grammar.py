import re

import pytest
import torch

from selhn.data.world import grammar
from selhn.data.world.grammar import MOST_WORDS, NUM_CAPTIONS, WORDS, WorldCaptions
from selhn.data.world.scenes import COLOURS, MATERIALS, RELATIONS, SETTINGS, SHAPES, SIZES, SceneSource

IMAGES = 150
MEANING = {
    phrase: (kind, meaning)
    for kind, table, meanings in (
        ("shape", grammar.SHAPE_NAMES, SHAPES),
        ("colour", grammar.COLOUR_NAMES, COLOURS),
        ("size", grammar.SIZE_NAMES, SIZES),
        ("material", grammar.MATERIAL_NAMES, MATERIALS),
    )
    for row, meaning in zip(table, meanings, strict=True)
    for phrase in row
    if phrase
}
SETTING_OF = {p: s for row, s in zip(grammar.SETTING_NAMES, SETTINGS, strict=True) for p in row}
RELATION_OF = {p: r for row, r in zip(grammar.RELATION_NAMES, RELATIONS, strict=True) for p in row}
VAGUE = set(grammar.THINGS[0])


def any_of(kind):
    return "|".join(word for word, (its_kind, _) in MEANING.items() if its_kind == kind)


NOUN_PHRASE = re.compile(
    rf"\b(?:a|an|the)(?: ({any_of('size')}))?(?: ({any_of('colour')}))?(?: ({any_of('material')}))?"
    rf" ({any_of('shape')}|{'|'.join(VAGUE)})\b"
)
HOLDS = {
    "left of": lambda a, b: b.x - a.x > 0.1,
    "right of": lambda a, b: a.x - b.x > 0.1,
    "above": lambda a, b: b.y - a.y > 0.1,
    "below": lambda a, b: a.y - b.y > 0.1,
    "in front of": lambda a, b: b.depth - a.depth > 0.1,
    "behind": lambda a, b: a.depth - b.depth > 0.1,
    "next to": lambda a, b: abs(a.x - b.x) + abs(a.y - b.y) < 0.5,
}


@pytest.fixture(scope="module")
def source():
    return SceneSource(0, "train")


@pytest.fixture(scope="module")
def captions(source):
    return WorldCaptions(source, IMAGES)


def meant(match, scene):
    """The things that a noun phrase may speak of."""
    said = dict(MEANING[word] for word in match.groups() if word and word not in VAGUE)
    return [
        thing for thing in scene.things if all(getattr(thing, kind) == value for kind, value in said.items())
    ]


def test_captions_are_true(source, captions):
    scenes = source.draw(torch.arange(IMAGES))
    related = set()
    for text, caption in enumerate(captions):
        scene = scenes.scene(text // NUM_CAPTIONS, "")
        phrases = list(NOUN_PHRASE.finditer(caption))
        things = [meant(phrase, scene) for phrase in phrases]
        assert 2 <= len(phrases) <= 3, caption
        assert all(things), f"{caption!r} names what is not in {scene}"
        between = caption[phrases[0].end() : phrases[1].start()].strip().removeprefix("is ")
        if between not in ("and", "with"):
            holds = HOLDS[RELATION_OF[between]]
            assert any(holds(a, b) for a in things[0] for b in things[1] if a is not b), (
                f"{caption!r}: {scene}"
            )
            related.add(RELATION_OF[between])
        rest = f"{caption[: phrases[0].start()]}|{caption[phrases[-1].end() :]}"
        said = {setting for phrase, setting in SETTING_OF.items() if re.search(rf"\b{phrase}\b", rest)}
        assert said <= {scene.setting}, f"{caption!r}: {scene.setting}"
    assert related == set(RELATIONS)


def test_five_different_captions_an_image(captions):
    assert len(captions) == NUM_CAPTIONS * IMAGES
    for image in range(IMAGES):
        assert len(set(captions[5 * image : 5 * image + 5])) == 5
    lengths = [len(caption.split()) for caption in captions]
    assert 5 <= min(lengths) < 8
    assert 16 <= max(lengths) <= MOST_WORDS
    assert len(set(captions)) > 0.99 * len(captions)


def test_every_word_is_used(source):
    assert {word for caption in WorldCaptions(source, 2000) for word in caption.split()} == set(WORDS[1:])
    assert len(WORDS) <= 256, "codes are bytes"


def test_articles(source):
    for caption in WorldCaptions(source, 400):
        for article, word in re.findall(r"\b(an?) (\w+)", caption):
            assert article == ("an" if word[0] in "aeiou" else "a"), caption


def test_access(captions):
    every = list(captions)
    assert every == captions[:] == [captions[i] for i in range(len(captions))]
    assert captions[-1] == every[-1]
    assert captions[3:9:2] == every[3:9:2]
    with pytest.raises(IndexError):
        captions[750]


def test_later_blocks_do_not_depend_on_earlier_ones(source):
    small, large = WorldCaptions(source, 2100), WorldCaptions(source, 5000)
    assert large[10_499] == small[10_499]
    assert large[:10] == small[:10]
