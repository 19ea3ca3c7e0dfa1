"""The language of the generated world: five captions per image, each true, partial, and built differently."""

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias, overload

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from selhn.data.world.counter import Draws
from selhn.data.world.scenes import Scenes, SceneSource, relations

Table: TypeAlias = tuple[tuple[str, ...], ...]
NUM_CAPTIONS = 5
"""Captions per image, each of a different pattern."""
MOST_WORDS = 20
_BLOCK = 2000 * NUM_CAPTIONS


def _table(meanings: str) -> Table:
    """One row per meaning, in the order of the tables in scenes.py; bars separate synonyms."""
    return tuple(tuple(meaning.split("|")) for meaning in meanings.split(", "))


SHAPE_NAMES = _table(
    "ball|sphere, cube|box, cone, cylinder|can, pyramid, ring|hoop, star, heart, moon|crescent, gem|diamond"
)
COLOUR_NAMES = _table(
    "red|scarlet, orange, yellow|golden, green, blue, purple|violet, pink, brown, white, black|dark"
)
SIZE_NAMES = (("small", "little", "tiny"), ("",), ("large", "big", "huge"))
MATERIAL_NAMES = _table("metal|shiny, wooden, glass|transparent, rubber|soft")
SETTING_NAMES = _table(
    "on the beach|on the sand, in a meadow|on the grass, in the snow|on snowy ground, "
    "in the desert|among sand dunes, at night|under the stars, on the street|on the road, "
    "in a room|on the floor, by a lake|near the water"
)
RELATION_NAMES = _table(
    "left of|to the left of, right of|to the right of, above|over|higher than, below|under|lower than, "
    "in front of, behind, next to|beside|close to"
)
OPENERS = (("there is", "a picture of", "we see", "i can see", "this shows", "look at"),)
DETERMINERS = (("a", "a", "the"),)
THINGS = (("object", "thing", "toy"),)
_VARIANTS = 6  # every number of phrases above divides it, so that synonyms are equally likely
_TABLES = (
    *(SHAPE_NAMES, COLOUR_NAMES, SIZE_NAMES, MATERIAL_NAMES, SETTING_NAMES, RELATION_NAMES),
    *(OPENERS, DETERMINERS, THINGS, (("and", "with", "is", "an"),)),
)
WORDS = ("", *sorted({w for table in _TABLES for row in table for phrase in row for w in phrase.split()}))
"""Word number c of a caption's codes; 0 is padding."""
_CODE = {word: code for code, word in enumerate(WORDS)}


@cache
def _codes(table: Table) -> Int[Tensor, "meanings variants words"]:
    """Phrases as word numbers, the synonyms of a meaning repeated to the same number."""
    longest = max(len(phrase.split()) for row in table for phrase in row)
    codes = torch.zeros(len(table), _VARIANTS, longest, dtype=torch.int64)
    for meaning, row in enumerate(table):
        for variant in range(_VARIANTS):
            for place, word in enumerate(row[variant % len(row)].split()):
                codes[meaning, variant, place] = _CODE[word]
    return codes


class _Writer:
    """Writes about some scenes, one caption per row; the caption's number decides every choice of words."""

    def __init__(self, draws: Draws, texts: Int[Tensor, " T"]):
        self.draws, self.texts = draws, texts

    def chance(self, purpose: str, probability: float) -> Int[Tensor, "T 1"]:
        return (self.draws.uniform(purpose, self.texts, 1) < probability).long()

    def say(self, purpose: str, table: Table, meaning: Int[Tensor, " T"]) -> Int[Tensor, "T W"]:
        variant = self.draws.integers(f"say {purpose}", self.texts, below=_VARIANTS)
        return _codes(table)[meaning, variant]

    def noun_phrase(self, place: str, thing: Scenes, brief: bool = False) -> Int[Tensor, "T 5"]:
        """A determiner, at most two attributes (brief: one), and a noun that is sometimes only "thing"."""
        looks = (thing.shape, thing.colour, thing.size, thing.material)
        shape, colour, size, material = (numbers[:, 0] for numbers in looks)
        none = torch.zeros_like(shape)
        vague = self.chance(f"{place} vague", 0.08)
        with_colour = torch.maximum(self.chance(f"{place} colour", 0.75), vague)
        with_size = self.chance(f"{place} size", 0.45) * (size != 1).long()[:, None] * (not brief)
        # Two attributes at most, so that no caption grows past MOST_WORDS.
        full = with_colour * (with_size if not brief else 1)
        with_material = self.chance(f"{place} material", 0.6) * (1 - full)
        noun = self.say(f"{place} noun", SHAPE_NAMES, shape)
        parts = [
            self.say(f"{place} determiner", DETERMINERS, none),
            with_size * self.say(f"{place} size", SIZE_NAMES, size),
            with_colour * self.say(f"{place} colour", COLOUR_NAMES, colour),
            with_material * self.say(f"{place} material", MATERIAL_NAMES, material),
            torch.where(vague > 0, self.say(f"{place} thing", THINGS, none), noun),
        ]
        return torch.cat(parts, dim=1)

    def link(self, first: Scenes, second: Scenes) -> Int[Tensor, "T W"]:
        """A relation that holds between two things, or "with" if none does."""
        holds = relations(first, second)
        chosen = ((self.draws.uniform("relation", self.texts, holds.shape[1]) + 1.0) * holds).argmax(dim=1)
        phrase = self.say("relation", RELATION_NAMES, chosen)
        just_with = torch.zeros_like(phrase)
        just_with[:, 0] = _CODE["with"]
        return torch.where(holds.any(dim=1, keepdim=True), phrase, just_with)


def write(draws: Draws, scenes: Scenes, texts: Int[Tensor, " T"]) -> UInt8[Tensor, "T 20"]:
    """Captions as word numbers, zeros at the end; `scenes` has one row per text."""
    writer = _Writer(draws, texts)
    order = (draws.uniform("order", texts, scenes.present.shape[1]) + 1.0).mul(scenes.present)
    first, second, third = (scenes.pick(k) for k in order.topk(3, dim=1).indices.unbind(dim=1))
    # Images begin with different patterns, so that "caption 0" is not a special kind of sentence.
    start = draws.integers("pattern", texts // NUM_CAPTIONS, below=NUM_CAPTIONS)
    pattern = ((texts + start) % NUM_CAPTIONS)[:, None]
    pair, three, opened, placed, plain = ((pattern == k).long() for k in range(NUM_CAPTIONS))
    setting = writer.say("setting", SETTING_NAMES, scenes.setting)
    parts = [
        placed * setting,
        placed * torch.tensor([_CODE["there"], _CODE["is"]]),
        opened * writer.say("opener", OPENERS, torch.zeros_like(texts)),
        writer.noun_phrase("first", first),
        plain * writer.chance("verb", 0.5) * _CODE["is"],
        (opened + placed + plain) * writer.link(first, second),
        pair * _CODE["and"] + three * _CODE["with"],
        writer.noun_phrase("second", second),
        three * _CODE["and"],
        three * writer.noun_phrase("third", third, brief=True),
        (1 - placed) * writer.chance("setting", 0.6) * setting,
    ]
    return _packed(torch.cat(parts, dim=1))


def _packed(slots: Int[Tensor, "T S"]) -> UInt8[Tensor, "T 20"]:
    """Words moved to the front, and "a" turned into "an" before a vowel."""
    used = slots > 0
    places = torch.where(used, used.cumsum(dim=1) - 1, MOST_WORDS)
    words = slots.new_zeros(len(slots), MOST_WORDS + 1).scatter_(1, places, slots * used)[:, :MOST_WORDS]
    begins_with_vowel = torch.tensor([word[:1] in tuple("aeiou") for word in WORDS])
    vowel_next = torch.nn.functional.pad(begins_with_vowel[words[:, 1:]], (0, 1))
    words = torch.where((words == _CODE["a"]) & vowel_next, _CODE["an"], words)
    return words.to(torch.uint8)


class WorldCaptions(Sequence[str]):
    """The captions of a split, written when they are first read, a block at a time."""

    def __init__(self, source: SceneSource, num_images: int):
        self.source, self._size = source, num_images * NUM_CAPTIONS
        self._blocks: dict[int, UInt8[np.ndarray, "T 20"]] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        numbers = range(self._size)[index]
        return (
            [self._text(number) for number in numbers] if isinstance(numbers, range) else self._text(numbers)
        )

    def _text(self, number: int) -> str:
        block, row = divmod(number, _BLOCK)
        if block not in self._blocks:
            texts = torch.arange(block * _BLOCK, min((block + 1) * _BLOCK, self._size))
            scenes = self.source.draw(texts[::NUM_CAPTIONS] // NUM_CAPTIONS).repeat(NUM_CAPTIONS)
            draws = Draws(self.source.seed, self.source.split, "captions")
            self._blocks[block] = write(draws, scenes, texts).numpy()
        return " ".join(WORDS[code] for code in self._blocks[block][row].tolist() if code)
