import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import DenseFeatures
from selhn.training.config import TrainConfig
from selhn.training.step import on_device

CPU = torch.device("cpu")


def test_on_a_cpu_features_stay_where_they_are(tiny_data):
    assert on_device(tiny_data, TrainConfig(), CPU) is tiny_data


def test_a_precision_that_is_asked_for_is_taken(tiny_data):
    moved = on_device(tiny_data, TrainConfig(feature_precision="int8"), CPU)
    assert all(moved[name].features.scale is not None for name in ("train", "dev", "test"))


def test_what_does_not_fit_stays_or_is_refused(tiny_data):
    with pytest.raises(SelhnError):
        on_device(tiny_data, TrainConfig(feature_precision="float32", feature_bytes=1000), CPU)


@pytest.mark.gpu
def test_on_a_gpu_features_have_the_precision_of_the_encoders(tiny_data):
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        moved = on_device(tiny_data, TrainConfig(precision=precision), torch.device("cuda"))
        assert isinstance(moved.train.features, DenseFeatures)
        assert moved.train.features.store.dtype == dtype
        assert moved.train.features.store.is_cuda
    assert on_device(tiny_data, TrainConfig(feature_bytes=1000), torch.device("cuda")) is tiny_data
