import pytest
import torch

from selhn.data import DenseFeatures, Split
from selhn.eval import encode_split, score_split
from selhn.ops import Fragments, unit
from selhn.training.protocols.offline import hardest_negatives, one_vector, texts_of_images


@pytest.mark.parametrize("tile_scores", [1, 5_000, 2**24], ids=["one row", "some rows", "all rows"])
@pytest.mark.parametrize("name", ["rvse", "vsepp_order"])
def test_exact_for_models_with_one_vector(name, tile_scores, tiny_model, tiny_data):
    model, split = tiny_model(name), tiny_data.dev
    texts, images = hardest_negatives(model, split, 7, 3, tile_scores)
    scores = score_split(model, split)
    own = split.image_of_text == torch.arange(split.num_images)[:, None]
    for found, rows in (
        (texts, scores.masked_fill(own, -torch.inf)),
        (images, scores.masked_fill(own, -torch.inf).T),
    ):
        assert found.dtype == torch.int32
        picked = rows.gather(1, found.long())
        torch.testing.assert_close(picked, rows.topk(found.shape[1]).values, rtol=0, atol=1e-6)
        assert picked.isfinite().all(), "no image with a text of its own"


@pytest.mark.parametrize("name", ["scan_t2i_avg", "bfan_equal"])
def test_fragments_rank_by_their_mean_direction(name, tiny_model, tiny_data):
    model, split = tiny_model(name), tiny_data.dev
    texts, _ = hardest_negatives(model, split, 5, 2)
    images_, texts_ = encode_split(model, split)
    cosines = unit(images_.vectors.sum(1)) @ unit(texts_.vectors.sum(1)).T
    cosines[split.image_of_text == torch.arange(split.num_images)[:, None]] = -torch.inf
    picked = cosines.gather(1, texts.long())
    torch.testing.assert_close(picked, cosines.topk(5).values, rtol=0, atol=1e-5)


def test_the_vector_of_the_whole_comes_first():
    vectors, mask, whole = torch.rand(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), torch.rand(2, 4)
    torch.testing.assert_close(one_vector(Fragments(vectors, mask, whole)), unit(whole))
    assert one_vector(whole) is whole


def test_texts_of_images_and_images_without_texts(tiny_model, tiny_data):
    features = DenseFeatures(tiny_data.dev.features.gather(torch.arange(4))[0])
    image_of_text = torch.tensor([2, 0, 2, 0, 2, 3])
    split = Split("some", features, list(tiny_data.dev.captions[:6]), image_of_text, ["a", "b", "c", "d"])
    texts, first, number = texts_of_images(split)
    assert number.tolist() == [2, 0, 3, 1]
    assert texts[first[0] :][:2].tolist() == [1, 3]
    assert texts[first[2] :][:3].tolist() == [0, 2, 4]
    _, images = hardest_negatives(tiny_model(), split, 3, 2)
    assert not (images == 1).any()
