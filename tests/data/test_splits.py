import numpy as np
import pytest
import torch

from selhn.base.errors import NotFound, SelhnError
from selhn.data import Data, DenseFeatures, Split

FEATURES = DenseFeatures(torch.rand(2, 3, 4))


def test_counts():
    split = Split("train", FEATURES, ["a", "b", "c"], torch.tensor([0, 1, 1]), ["x", "y"])
    assert (split.num_images, split.num_texts) == (2, 3)
    data = Data("tiny", split, split, split)
    assert (data.feature_dim, data["dev"]) == (4, split)
    with pytest.raises(NotFound):
        data["x"]


def test_the_first_images_and_their_texts():
    boxes = torch.rand(2, 3, 4)
    split = Split("test", FEATURES, ["a", "b", "c"], torch.tensor([1, 0, 1]), ["x", "y"], boxes, folds=2)
    part = split.first(1)
    assert (part.captions, part.image_names, part.image_of_text.tolist(), part.folds) == (
        ["b"],
        ["x"],
        [0],
        1,
    )
    assert torch.equal(part.features.gather(torch.tensor([0]))[0], FEATURES.store[:1])
    assert torch.equal(part.boxes, boxes[:1])
    assert split.first(9).num_images == 2


@pytest.mark.parametrize(
    ("captions", "owners", "names", "sentence"),
    [
        (["a"], [0, 1], ["x", "y"], "1 captions"),
        (["a", "b"], [0, 1], ["x"], "1 names"),
        (["a", "b"], [0, 2], ["x", "y"], "0 to 2"),
        (["a", "b"], [-1, 1], ["x", "y"], "from -1"),
    ],
)
def test_what_does_not_fit_is_refused(captions, owners, names, sentence):
    with pytest.raises(SelhnError, match=sentence):
        Split("train", FEATURES, captions, torch.tensor(owners), names)
    with pytest.raises(SelhnError, match="folds"):
        Split("train", FEATURES, ["a", "b"], torch.tensor([0, 1]), ["x", "y"], folds=3)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"features": torch.rand(2, 3, 4)}, "features must be"),
        ({"image_of_text": [0, 1]}, "image_of_text must be"),
        ({"image_of_text": torch.tensor([0.0, 1.0])}, "float32"),
        ({"captions": [["a", "b"], ["c"]]}, "caption 0"),
        ({"captions": [3, 4]}, "caption 0"),
    ],
)
def test_what_is_of_another_kind_is_refused(changed, sentence):
    given = {"features": FEATURES, "captions": ["a", "b"], "image_of_text": torch.tensor([0, 1])}
    with pytest.raises(SelhnError, match=sentence):
        Split("train", **{**given, **changed}, image_names=["x", "y"])


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(("store", "got"), [([[1.0]], "list"), (torch.rand(3), r"\(3,\)")])
def test_features_that_are_no_array(store, got):
    with pytest.raises(SelhnError):
        DenseFeatures(store)


def a_split(images=5):
    """Two texts an image, mixed; everything says which image or text it is of."""
    owners = torch.tensor([*range(images), *reversed(range(images))])
    side = {"concepts": torch.arange(2 * images)[:, None].float()}
    return Split(
        "train",
        DenseFeatures(torch.arange(images).float()[:, None, None].expand(images, 2, 3).clone()),
        [f"text {text} of image {owner}" for text, owner in enumerate(owners.tolist())],
        owners,
        [f"image {image}" for image in range(images)],
        torch.arange(images).float()[:, None, None].expand(images, 2, 4).clone(),
        given_side=side,
    )


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("kind", [torch.tensor, np.array, list, tuple])
@pytest.mark.parametrize("rows", [[1, 0, 2], [4, 2], [3], [0, 1, 2, 3, 4], [4, 0, 3, 1]])
def test_a_part_in_any_order_keeps_each_text_with_its_image(rows, kind):
    part = a_split().some(kind(rows))
    assert part.image_names == [f"image {row}" for row in rows]
    assert part.features.gather(torch.arange(len(rows)))[0][:, 0, 0].tolist() == rows
    assert part.boxes[:, 0, 0].tolist() == rows
    assert len(part.captions) == 2 * len(rows)
    for text, (caption, image) in enumerate(zip(part.captions, part.image_of_text.tolist(), strict=True)):
        assert caption.endswith(f"of {part.image_names[image]}")
        assert caption.startswith(f"text {int(part.side['concepts'][text])} ")


def test_a_part_of_a_part_keeps_each_text_with_its_image():
    part = a_split().some([4, 1, 3]).some([2, 0])
    assert part.image_names == ["image 3", "image 4"]
    assert all(
        caption.endswith(f"of {part.image_names[image]}")
        for caption, image in zip(part.captions, part.image_of_text.tolist(), strict=True)
    )


@pytest.mark.parametrize("rows", [[], torch.arange(0), np.array([], dtype=np.int32)])
def test_no_images_are_a_part_too(rows):
    part = a_split().some(rows)
    assert (part.num_images, part.num_texts) == (0, 0)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "rows",
    [[1, 1], [0, 5], [-1], [0.0, 1.0], [True, False, True, False, False], [[0, 1]], ["image 1"], 3, None],
)
def test_rows_that_are_no_different_images_are_refused(rows):
    with pytest.raises(SelhnError, match="some"):
        a_split().some(rows)
