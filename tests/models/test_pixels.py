"""Models that see pixels, with small random towers; those of transformers and timm: tests/integrations."""

import json

import pytest
import torch
from model_cases import BERT, WORDS
from model_cases import make_from_pixels as make
from PIL import Image

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.sealed import CHECKSUMS_FILE
from selhn.models import load_model
from selhn.models.pixels import as_pixels, sides, without_weights
from selhn.pictures import load_extractor
from selhn.training.optim import parameter_groups


def noise(side=32):
    return Image.effect_noise((40, 25), 90).convert("RGB").resize((side, side))


def test_patches_are_the_pixels_of_the_picture():
    extractor, picture = load_extractor("pixels_32_8"), noise()
    regions = extractor([picture])
    assert regions.shape == (1, 17, 192)
    torch.testing.assert_close(regions[0, 0], regions[0, 1:].mean(0))
    values = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(32, 32, 3)
    values = values.permute(2, 0, 1) / 127.5 - 1
    mask = torch.ones(1, 17, dtype=torch.bool)
    torch.testing.assert_close(as_pixels(regions, mask)[0], values, rtol=0, atol=1e-6)
    mask[0, 6] = False  # the second patch of the second row
    assert not as_pixels(regions, mask)[0, :, 8:16, 8:16].any()


@pytest.mark.parametrize(("name", "error"), [("pixels_32_7", SelhnError), ("pixels_2048_16", SelhnError),
                                             ("pixels_32_0", SelhnError), ("pixels_32", NotFound)])  # fmt: skip
def test_pixels_that_cannot_be_patches(name, error):
    with pytest.raises(error):
        load_extractor(name)


def test_regions_that_are_no_patches_are_refused():
    assert sides(192, 17) == (4, 8)
    for wrong in ({"num_regions": 36}, {"feature_dim": 2048}):
        with pytest.raises(SelhnError, match="--extractor pixels_224_16"):
            make(**wrong)
    with pytest.raises(SelhnError, match="num_regions"):
        make(num_regions=0)
    with pytest.raises(SelhnError, match="17"):
        make().embed_images(torch.rand(1, 5, 192))


def test_patches_left_out_are_not_looked_at():
    model, regions, mask = make(), torch.rand(2, 17, 192), torch.ones(2, 17, dtype=torch.bool)
    mask[:, 4:9] = False
    before = model.embed_images(regions, mask)
    regions[:, 4:9] += 3
    torch.testing.assert_close(model.embed_images(regions, mask), before)


def test_clip_learns_its_words_from_scratch():
    model = make("clip", bert={key: value for key, value in BERT.items() if key != "vocab_size"})
    assert model.settings["bert"]["vocab_size"] == WORDS.size
    (group,) = parameter_groups(model, lr=1e-3)  # a tenth of the rate is for BERTs that know language
    assert group["lr"] == 1e-3
    with pytest.raises(SelhnError):
        make("clip", bert="a_folder")


@pytest.mark.parametrize("source", ["timm:resnet18", "transformers:someone/model"])
def test_a_file_names_no_vision_model_to_fetch(source, tmp_path):
    make().save(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    written = json.loads(config.read_text())
    config.write_text(
        json.dumps({**written, "format": 1, "settings": {**written["settings"], "vision": source}})
    )
    (tmp_path / "saved" / CHECKSUMS_FILE).unlink()
    with pytest.raises(Damaged):
        load_model(tmp_path / "saved")


def test_a_run_that_is_resumed_fetches_no_weights():
    assert without_weights("timm:resnet18") == {
        "library": "timm",
        "model": "resnet18",
        "is_pretrained": True,
    }
    for vision in ("transformers:folder", {"hidden_size": 8}, None):
        assert without_weights(vision) == vision
