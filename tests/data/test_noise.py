import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data, with_noise


@pytest.fixture(scope="module")
def data():
    return load_data("world", images=100)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.8])
def test_the_rate_is_exact_and_every_image_keeps_its_number_of_texts(data, rate):
    noisy = with_noise(data, rate, seed=0)
    wrong = noisy.train.image_of_text != data.train.image_of_text
    assert wrong.sum() == round(rate * data.train.num_texts)
    assert torch.equal(noisy.train.image_of_text.bincount(), data.train.image_of_text.bincount())
    assert noisy.train.captions == data.train.captions
    assert noisy.train.features is data.train.features


def test_dev_and_test_stay(data):
    noisy = with_noise(data, 0.5, seed=0)
    assert noisy.dev is data.dev
    assert noisy.test is data.test
    assert with_noise(data, 0.0, seed=0) is data


def test_the_seed_decides(data):
    first, again, other = (with_noise(data, 0.3, seed).train.image_of_text for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_is_no_share(data, rate):
    with pytest.raises(SelhnError):
        with_noise(data, rate, seed=0)


def test_too_few_to_change_among_themselves(data):
    with pytest.raises(SelhnError):
        with_noise(data, 0.002, seed=0)
