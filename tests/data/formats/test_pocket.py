import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data

ROWS = torch.tensor([3, 1])


def test_both_forms_follow_the_formula(pocket):
    codes = np.load(pocket / "train_ims.npy")[ROWS].astype(np.float64)
    with np.load(pocket / "projection.npz") as projection:
        z = codes * projection["scale"]
        full = np.maximum(0, projection["mean"] + z @ projection["components"].astype(np.float64).T)
    data = load_data(pocket)
    assert (data.name, data.feature_dim, data.train.features.num_regions) == ("tiny_pocket", 5, 4)
    np.testing.assert_allclose(data.train.features.gather(ROWS)[0], full, atol=1e-4)
    first = load_data(pocket, form="pca", regions=2).train
    np.testing.assert_allclose(first.features.gather(ROWS)[0], z[:, :2], rtol=1e-6)
    assert first.boxes.shape == (4, 2, 4)
    np.testing.assert_allclose(first.boxes, np.load(pocket / "train_boxes.npy")[:, :2, :4] / 255, rtol=1e-6)
    assert first.image_names[2] == "2.jpg"


def save(pocket, **arrays):
    with np.load(pocket / "projection.npz") as projection:
        np.savez(pocket / "projection.npz", **{**projection, **arrays})


@pytest.mark.parametrize(
    ("harm", "options", "sentence"),
    [
        (lambda p: None, {"form": "half"}, "form"),
        (lambda p: None, {"regions": 0}, "regions"),
        (lambda p: save(p, scale=np.ones(4, np.float32)), {}, "do not fit"),
        (lambda p: save(p, mean=np.full(5, np.nan)), {}, "mean"),
        (lambda p: np.save(p / "dev_ims.npy", np.ones((2, 4, 9), np.int8)), {}, "int8 .2, 4, 9"),
        (lambda p: np.save(p / "dev_ims.npy", np.ones((2, 4, 3), np.int16)), {}, "codes"),
        (lambda p: (p / "projection.npz").write_bytes(b"x"), {}, "npz"),
    ],
)
def test_what_is_wrong_is_said(pocket, as_a_user, harm, options, sentence):
    harm(pocket)
    with pytest.raises(SelhnError, match=sentence):
        load_data(pocket, **options)
