import numpy as np
import pytest
import torch
from PIL import Image

from selhn.base.types import Attention
from selhn.diagnose import attention_figure

pytest.importorskip("matplotlib")

RED = np.tile(np.array([255, 0, 0], dtype=np.uint8), (60, 90, 1))


def example(num_words=4, **changes):
    weights = torch.zeros(num_words + 2, 3)
    weights[:, 1] = 1
    words = ("<start>", *(f"word{i}" for i in range(num_words)), "<end>")
    boxes = torch.tensor([[0.0, 0, 1, 1], [0.1, 0.1, 0.5, 0.5], [0.6, 0.2, 0.9, 0.9]])
    is_word = (False, *[True] * num_words, False)
    return Attention(
        **{"score": 0.5, "of_words": weights, "words": words, "is_word": is_word, "boxes": boxes} | changes
    )


def drawn(*arguments, path, **settings):
    with Image.open(attention_figure(*arguments, path, **settings)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def share_of(pixels, colour, tolerance=12):
    return (abs(pixels - np.array(colour)).max(2) < tolerance).mean()


def test_a_map_and_a_panel_for_every_word(tmp_path):
    path = tmp_path / "a.png"
    without_boxes = drawn(example(boxes=None), path=path)
    one_row, two_rows = drawn(example(), path=path), drawn(example(num_words=7), path=path)
    assert without_boxes.shape[1] == one_row.shape[1]
    assert without_boxes.shape[0] < one_row.shape[0] < two_rows.shape[0]
    both = drawn(example(of_regions=torch.rand(6, 3)), path=path)
    assert both.shape[0] > one_row.shape[0]
    assert share_of(both, (11, 47, 71)) > 0.01, "the heaviest cells are darkest"


def test_the_picture_is_below_the_boxes(tmp_path):
    pale_red = (255, 115, 115)
    assert share_of(drawn(example(), path=tmp_path / "a.png"), pale_red) == 0
    pixels = drawn(example(), path=tmp_path / "a.png", picture=RED)
    assert share_of(pixels, pale_red) > 0.05
    wide = drawn(example(), path=tmp_path / "a.png", aspect=3.0)
    assert wide.shape[0] < drawn(example(), path=tmp_path / "a.png", aspect=1.0).shape[0]


def test_only_boxes_with_weight_are_shaded(tmp_path):
    orange, weights = (194, 65, 12), torch.zeros(6, 3)
    weights[0, 0] = weights[3, 1] = 1  # a mark and the third word
    pixels = drawn(example(of_words=weights), path=tmp_path / "a.png")
    full = drawn(example(), path=tmp_path / "a.png")
    assert 0 < share_of(pixels, orange, 40) < share_of(full, orange, 40) / 3


def test_a_look_at_everything_alike_is_pale(tmp_path):
    num_regions = 12
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.5]]).repeat(num_regions, 1)
    alike = torch.full((6, num_regions), 1 / num_regions)
    one = torch.nn.functional.one_hot(torch.full((6,), 4), num_regions).float()
    pale, dark = (drawn(example(of_words=w, boxes=boxes), path=tmp_path / "a.png") for w in (alike, one))
    assert share_of(pale, (11, 47, 71)) < 0.001, "only the scale beside it is dark"
    assert share_of(dark, (11, 47, 71)) > 0.01


def test_one_direction_and_what_is_kept(tmp_path):
    regions_look = example(of_words=None, of_regions=torch.rand(6, 3), kept=torch.full((6,), 0.1))
    assert attention_figure(regions_look, tmp_path / "a.png").stat().st_size > 10_000
