from dataclasses import replace

import pytest
import torch

from selhn.losses import InfoNCE, TripletHN, TripletSelHN
from selhn.train import TrainConfig, train
from selhn.train.step import choose_device, epsilon_of, make_batches


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no GPU: use device=cpu"):
        choose_device("cuda")


def test_a_batch_larger_than_the_data(tiny_model, tiny_data):
    with pytest.raises(ValueError, match="batch_size 9999 is more than the 500 texts"):
        train(tiny_model(), tiny_data, TripletHN(), batch_size=9999, device="cpu")


def test_told_apart_is_what_selhn_says_it_is():
    assert epsilon_of(TripletSelHN(epsilon=0.03)) == 0.03
    assert epsilon_of(InfoNCE()) == epsilon_of(None) == 0.01


@pytest.mark.parametrize("name", ["meta", "mps", "nonsense"])
def test_devices_that_are_not_there(name):
    with pytest.raises(ValueError, match=f"there is no device '{name}' here"):
        choose_device(name)


def test_a_split_without_texts_is_refused_at_once(tiny_model, tiny_data):
    empty = replace(tiny_data.test, captions=[], image_of_text=tiny_data.test.image_of_text[:0])
    with pytest.raises(ValueError, match="test has no texts: training needs some"):
        make_batches(tiny_model(), replace(tiny_data, test=empty), TrainConfig(batch_size=4), torch.device("cpu"))
