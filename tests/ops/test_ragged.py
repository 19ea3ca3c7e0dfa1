import torch

from selhn.ops import is_ragged


def test_on_a_cpu_in_full_precision():
    assert is_ragged(torch.zeros(1))
    assert not is_ragged(torch.zeros(1, device="meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_ragged(torch.zeros(1))
        with torch.autocast("cpu", enabled=False):
            assert is_ragged(torch.zeros(1))
