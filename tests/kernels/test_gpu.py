import pytest
import torch

from selhn.kernels import side_by_side
from selhn.kernels.gpu import fusable


def test_both_are_computed():
    assert side_by_side(lambda: 1, lambda: "b") == (1, "b")


@pytest.mark.gpu
def test_two_branches_of_a_recording():
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, 64, device="cuda", requires_grad=True)

    def step():
        x.grad = w.grad = None
        a, b = side_by_side(lambda: (x @ x).relu(), lambda: (w @ w).tanh())
        total = (a * b).sum()
        total.backward()
        return total

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = [step().detach().clone(), x.grad.clone(), w.grad.clone()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            total = step()
        graph.replay()
        torch.cuda.synchronize()
    assert all(torch.allclose(a, b) for a, b in zip(expected, [total, x.grad, w.grad]))


def test_a_cpu_needs_no_triton():
    assert not fusable(torch.zeros(1))
