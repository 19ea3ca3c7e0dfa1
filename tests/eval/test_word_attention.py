import pytest
import torch

from selhn.base.errors import NotFound, SelhnError
from selhn.data import load_data
from selhn.eval import image_row, pair_attention, score_split
from selhn.models import create_model
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def split():
    return load_data("world", images=100).test


@pytest.fixture(scope="module")
def make(split):
    def build(name):
        torch.manual_seed(0)
        vocabulary = Vocabulary.build(split.captions)
        return create_model(name, tokenizer=vocabulary, feature_dim=split.features.width, dim=16, word_dim=8)

    return build


@pytest.mark.parametrize("name", ["scan_t2i_avg", "scan_i2t_lse", "bfan_prob"])
def test_a_pair_of_a_split(name, make, split):
    model = make(name).train()
    attention = pair_attention(model, split, split.image_names[7], split.captions[36])
    assert model.training, "as it was before"
    assert attention.words[0] == "<start>"
    assert (
        " ".join(word for word, is_word in zip(attention.words, attention.is_word) if is_word)
        == split.captions[36]
    )
    assert attention.is_word == (False, *[True] * (len(attention.words) - 2), False)
    assert attention.weights.shape == (len(attention.words), 12)
    assert torch.equal(attention.boxes, split.boxes[7])
    assert abs(attention.score - score_split(model, split)[7, 36].item()) < 1e-5


def test_a_word_the_model_does_not_know_is_shown_as_it_reads_it(make, split):
    assert pair_attention(make("scan_t2i_avg"), split, 0, "a zyzzyva").words == (
        "<start>",
        "a",
        "<unk>",
        "<end>",
    )


def test_models_without_attention_name_those_that_have(make, split):
    with pytest.raises(SelhnError):
        pair_attention(make("rvse"), split, 0, "a ball")


def test_images_by_name_and_number(make, split):
    assert image_row(split, "test-scene-000003") == image_row(split, "3") == image_row(split, 3) == 3
    with pytest.raises(NotFound, match="cat"):
        image_row(split, "cat")
    with pytest.raises(NotFound, match="100"):
        image_row(split, 100)
    with pytest.raises(SelhnError, match="text"):
        pair_attention(make("scan_t2i_avg"), split, 0, " ")
