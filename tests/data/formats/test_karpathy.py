import json

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.data.formats import karpathy as karpathy_module
from selhn.data.formats import precomp as precomp_module


def edit(folder, change):
    path = folder / "dataset_flickr30k.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_splits_are_joined_with_their_rows(karpathy):
    data = load_data(karpathy)
    assert (data.name, data.test.folds) == ("flickr30k", 1)
    assert data.train.image_names == ["100.jpg", "102.jpg", "104.jpg"]  # restval is trained on
    assert data.dev.image_names == ["101.jpg", "106.jpg"]
    assert data.dev.image_of_text.tolist() == [0, 0, 0, 1, 1]
    assert data.dev.captions[3] == "two children play number 6 take 0"
    array = np.load(karpathy / "features.npy").astype(np.float32)
    np.testing.assert_array_equal(data.test.features.gather(torch.arange(2))[0], array[[3, 5]])


def test_options(karpathy, monkeypatch):
    monkeypatch.setattr(precomp_module, "DEV_IMAGES", 1)
    (karpathy / "features.npy").rename(karpathy.parent / "elsewhere.npy")
    options = {"features": karpathy.parent / "elsewhere.npy", "max_captions": 2}
    data = load_data(karpathy / "dataset_flickr30k.json", **options)
    assert data.dev.image_of_text.tolist() == [0, 0]
    assert load_data(karpathy / "dataset_flickr30k.json", cut_dev=False, **options).dev.num_images == 2
    with pytest.raises(SelhnError):
        load_data(karpathy / "dataset_flickr30k.json", **(options | {"max_captions": 0}))


def test_coco_is_cut_into_five_folds(karpathy, monkeypatch):
    monkeypatch.setattr(karpathy_module, "COCO_TEST_IMAGES", 2)
    monkeypatch.setattr(karpathy_module, "COCO_FOLDS", 2)
    assert load_data(karpathy).test.folds == 1, "as many images, but not COCO's"
    (karpathy / "dataset_flickr30k.json").rename(karpathy / "dataset_coco.json")
    assert load_data(karpathy).test.folds == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("images"), "images"),
        (lambda c: c["images"][2].update(split="validation"), "image 2.*split"),
        (lambda c: c["images"][2].update(split=["train"]), "image 2.*split"),
        (lambda c: c["images"][3].update(sentences=[]), "image 3"),
        (lambda c: c["images"][1]["sentences"].insert(1, {"raw": " "}), "image 1, sentence 1"),
        (lambda c: c["images"].pop(), "7 rows"),
        (
            lambda c: c.update(images=[i for i in c["images"] if i["split"] != "val"] + 2 * c["images"][:1]),
            "no dev split",
        ),
    ],
)
def test_what_is_wrong_is_said(karpathy, change, sentence):
    edit(karpathy, change)
    with pytest.raises(SelhnError, match=sentence):
        load_data(karpathy)


def test_two_feature_files_are_one_too_many(karpathy):
    np.save(karpathy / "more.npy", np.zeros((7, 3, 4)))
    with pytest.raises(SelhnError, match="features=FILE"):
        load_data(karpathy)
