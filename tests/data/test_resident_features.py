from dataclasses import replace

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import DenseFeatures, RaggedFeatures, Split, load_data, make_resident, resident_bytes

CPU = torch.device("cpu")


def split_of(features):
    images = features.num_images
    return Split(
        "train", features, ["a dog"] * images, torch.arange(images), [f"{i}.jpg" for i in range(images)]
    )


def ragged():
    torch.manual_seed(0)
    return split_of(RaggedFeatures.of(torch.randn(7, 5), torch.tensor([0, 3, 4, 7])))


@pytest.mark.parametrize(
    ("precision", "error"), [("float32", 0), ("float16", 1e-3), ("bfloat16", 8e-3), ("int8", 1 / 250)]
)
def test_features_are_the_same_but_for_the_precision(precision, error):
    split = ragged()
    resident = make_resident(split, CPU, precision)
    rows = torch.tensor([2, 0, 2, 1])
    (expected, mask), (found, same_mask) = (s.features.gather(rows) for s in (split, resident))
    assert torch.equal(mask, same_mask)
    assert ((found - expected).abs() <= error * expected.abs().amax(dim=2, keepdim=True)).all()
    assert resident.features.num_bytes <= resident_bytes(split.features, precision)
    sizes = (resident.features.num_images, resident.features.num_regions, resident.features.width)
    assert sizes == (3, 3, 5)
    assert torch.equal(resident.features.to("cpu").gather(rows)[0], found)


def test_what_is_computed_is_computed_once():
    world = load_data("world", images=100).train
    resident = make_resident(world, CPU, "float32")
    rows = torch.arange(7, 20)
    assert torch.equal(resident.features.gather(rows)[0], world.features.gather(rows)[0])
    assert isinstance(resident.features, DenseFeatures)
    assert resident.captions is world.captions


@pytest.mark.parametrize(
    ("number", "precision"),
    [(torch.nan, "int8"), (-torch.inf, "float32"), (1e20, "bfloat16"), (1e5, "float16")],
)
def test_bad_features_are_named(number, precision):
    split = ragged()
    store = split.features.store.clone()
    store[3, 1] = number
    with pytest.raises(SelhnError):
        make_resident(replace(split, features=replace(split.features, store=store)), CPU, precision)


@pytest.mark.usefixtures("as_a_user")
def test_an_unknown_precision_is_refused():
    with pytest.raises(SelhnError):
        make_resident(ragged(), CPU, "float64")
