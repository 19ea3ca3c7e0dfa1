import pytest
import torch

from selhn.base.device import choose_device, device_of, one_thread
from selhn.base.errors import NotFound, SelhnError


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(SelhnError):
        choose_device("cuda")


@pytest.mark.parametrize("name", ["meta", "mps", "nonsense"])
def test_devices_that_are_not_there(name):
    with pytest.raises(NotFound):
        choose_device(name)


def test_the_device_of_a_model():
    assert device_of(torch.nn.Linear(2, 3, device="meta")) == torch.device("meta")


def test_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
