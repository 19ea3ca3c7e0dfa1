from dataclasses import replace

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.diagnose import epsilon_of
from selhn.losses import InfoNCE, TripletHN, TripletSelHN
from selhn.training import TrainConfig, train
from selhn.training.step import make_batches


def test_a_batch_larger_than_the_data(tiny_model, tiny_data):
    with pytest.raises(SelhnError):
        train(tiny_model(), tiny_data, TripletHN(), batch_size=9999, device="cpu")


def test_told_apart_is_what_selhn_says_it_is():
    assert epsilon_of(TripletSelHN(epsilon=0.03)) == 0.03
    assert epsilon_of(InfoNCE()) == epsilon_of(None) == 0.01


def test_a_split_without_texts_is_refused_at_once(tiny_model, tiny_data):
    empty = replace(tiny_data.test, captions=[], image_of_text=tiny_data.test.image_of_text[:0])
    with pytest.raises(SelhnError):
        make_batches(
            tiny_model(), replace(tiny_data, test=empty), TrainConfig(batch_size=4), torch.device("cpu")
        )
