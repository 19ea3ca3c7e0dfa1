import torch

from selhn.kernels.triton_support import fusable


def test_a_cpu_needs_no_triton():
    assert not fusable(torch.zeros(1))
