from dataclasses import replace

import numpy as np
import pytest
from picture_cases import photo
from PIL import Image

from selhn.base.errors import SelhnError
from selhn.towers import Preparation
from selhn.towers.preparation import preparation, preparation_of_open_clip


def test_pictures_are_squashed_and_scaled():
    prepare = Preparation.of_shares(8, (0.5, 0.5, 0.5), (0.25, 0.5, 1.0))
    white = prepare(Image.new("RGB", (30, 20), "white"))
    assert white.shape == (3, 8, 8)
    assert np.allclose(white[:, 0, 0], [2.0, 1.0, 0.5])
    seen = Preparation((8, 12), (0.0,) * 3, (1.0,) * 3)(photo())
    assert np.array_equal(
        seen.transpose(1, 2, 0), np.asarray(photo().resize((12, 8), Image.Resampling.BICUBIC))
    )


def test_how_processors_prepare_pictures():
    clip = {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    }
    squash = Preparation.of_shares(224, (0.5,) * 3, (0.5,) * 3)
    assert preparation(clip, 224) == replace(squash, shorter_side=224)
    assert preparation({"size": 224, "do_center_crop": True, "crop_size": 224}, 224) == preparation(clip, 224)
    assert preparation({"size": {"height": 224, "width": 224}}, 224) == squash
    assert preparation({}, 224) == squash
    bilinear = preparation({"size": {"height": 8, "width": 8}, "resample": 2}, 8)
    assert np.array_equal(bilinear(photo()), replace(squash, size=(8, 8))(photo().resize((8, 8), 2)))
    known = {
        "size": 224,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    assert preparation_of_open_clip(known) == preparation(clip, 224)
    assert preparation_of_open_clip({**known, "size": (224, 224), "resize_mode": "squash"}) == squash
    with pytest.raises(SelhnError, match="'longest'"):
        preparation_of_open_clip({**known, "resize_mode": "longest"})
    wide = Preparation((4, 4), (0.0,) * 3, (1.0,) * 3, 4, "nearest")
    picture = Image.new("RGB", (12, 4), "red")
    picture.paste("blue", (4, 0, 8, 4))
    assert (wide(picture)[2] == 255).all(), "the middle is left"


def test_only_squashing_as_decoders_do_it_can_be_done_ahead():
    squash = Preparation((8, 12), (0.0,) * 3, (1.0,) * 3)
    assert squash.resized == (12, 8)
    assert replace(squash, shorter_side=12).resized is None
    assert replace(squash, resampling="bilinear").resized is None


@pytest.mark.parametrize(
    "wrong",
    [{"size": (0, 8)}, {"size": (8, 5000)}, {"shorter_side": 5000}, {"deviation": (1.0, 0.0, 1.0)},
     {"mean": (float("nan"),) * 3}, {"resampling": "sharp"}],
)  # fmt: skip
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(SelhnError):
        Preparation(**{"size": (8, 8), "mean": (0.0,) * 3, "deviation": (1.0,) * 3} | wrong)


@pytest.mark.parametrize("side", [1, 16, 224, 4096])
@pytest.mark.parametrize("is_wide", [True, False])
def test_a_line_is_cut_before_it_grows(is_wide, side, monkeypatch):
    sizes, resize = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda own, to, how: sizes.append(to) or resize(own, to, how))
    line = Image.new("RGB", (60_000, 1), "blue")
    line.paste("red", (0, 0, 30_000, 1))
    line = line if is_wide else line.transpose(Image.Transpose.ROTATE_270)
    found = Preparation((64, 48), (0.0,) * 3, (1.0,) * 3, side)(line)
    assert all(width * height <= 50_000_000 for width, height in sizes)
    red, _, blue = found if is_wide else found.transpose(0, 2, 1)
    assert red[:, : red.shape[1] // 2].sum() > blue[:, : red.shape[1] // 2].sum(), "the middle is left"
    assert red[:, red.shape[1] // 2 :].sum() < blue[:, red.shape[1] // 2 :].sum()
