import pytest
import torch

from selhn.data import Data, DenseFeatures, Split

FEATURES = DenseFeatures(torch.rand(2, 3, 4))


def test_counts():
    split = Split("train", FEATURES, ["a", "b", "c"], torch.tensor([0, 1, 1]), ["x", "y"])
    assert (split.num_images, split.num_texts) == (2, 3)
    assert Data("tiny", split, split, split).feature_dim == 4


@pytest.mark.parametrize(
    ("captions", "owners", "names", "sentence"),
    [
        (["a"], [0, 1], ["x", "y"], "train: 1 captions but 2 entries"),
        (["a", "b"], [0, 1], ["x"], "train: 2 images but 1 names"),
        (["a", "b"], [0, 2], ["x", "y"], "goes from 0 to 2 but the images are 0 to 1"),
        (["a", "b"], [-1, 1], ["x", "y"], "goes from -1"),
    ],
)
def test_what_does_not_fit_is_refused(captions, owners, names, sentence):
    with pytest.raises(ValueError, match=sentence):
        Split("train", FEATURES, captions, torch.tensor(owners), names)
