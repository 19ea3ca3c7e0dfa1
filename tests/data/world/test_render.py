import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data.world.render import FACES, GROUND, PAINT, SCENERY, render
from selhn.data.world.scenes import COLOURS, MATERIALS, SETTINGS, SHAPES, Scene, SceneSource, Thing


def lone(shape="ball", colour="red", material="rubber", setting="room"):
    return Scene("lone", setting, (Thing(shape, colour, "large", material, 0.5, 0.6, 0.75, 0.3, 0.12),))


def pixels(scene, size=64):
    return np.asarray(render(scene, size)).astype(int)


def test_size_and_colours():
    scenes = SceneSource(0, "train").draw(torch.arange(6))
    pictures = [render(scenes.scene(row, ""), 96) for row in range(6)]
    for picture in pictures:
        assert picture.size == (96, 96)
        assert picture.mode == "RGB"
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 50
    assert len({picture.tobytes() for picture in pictures}) == 6


def test_deterministic():
    assert np.array_equal(pixels(lone()), pixels(lone()))


@pytest.mark.parametrize(
    ("kind", "values"),
    [("shape", SHAPES), ("colour", COLOURS), ("material", MATERIALS), ("setting", SETTINGS)],
)
def test_every_word_has_its_own_look(kind, values):
    pictures = [pixels(lone(**{kind: value}), 128) for value in values]
    for i, first in enumerate(pictures):
        for second in pictures[:i]:
            assert np.abs(first - second).sum(axis=2).max() > 40


def test_a_thing_has_its_colour():
    assert pixels(lone(colour="red"))[38, 32] @ [2, -1, -1] > 150
    assert pixels(lone(colour="blue"))[38, 32] @ [-1, -1, 2] > 100


def test_near_things_hide_far_ones():
    near = Thing("ball", "red", "large", "rubber", 0.5, 0.6, 0.75, 0.1, 0.12)
    far = Thing("ball", "blue", "large", "rubber", 0.5, 0.6, 0.75, 0.9, 0.12)
    assert np.array_equal(
        pixels(Scene("", "room", (near, far)))[38, 32], pixels(Scene("", "room", (far, near)))[38, 32]
    )
    assert pixels(Scene("", "room", (near, far)))[38, 32] @ [2, -1, -1] > 150


def test_tables_cover_the_world():
    assert set(PAINT) == set(COLOURS)
    assert set(GROUND) == set(SCENERY) == set(SETTINGS)
    assert set(FACES) <= set(SHAPES)


def test_errors():
    with pytest.raises(SelhnError):
        render(lone(), 8)
