import pytest
import torch

from selhn.losses import InfoNCE, TripletHN, TripletSelHN
from selhn.train import train
from selhn.train.step import choose_device, epsilon_of


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
