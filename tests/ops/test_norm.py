import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.ops import unit


@given(st.integers(0, 10_000), st.sampled_from([1e-3, 1.0, 1e6]))
def test_length_one_and_the_same_direction(seed, scale):
    vectors = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)) * scale
    normed = unit(vectors)
    torch.testing.assert_close(normed.norm(dim=-1), torch.ones(4), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cosine_similarity(normed, vectors), torch.ones(4))


def test_zeros_stay_zero_with_finite_gradients():
    vectors = torch.zeros(2, 3, requires_grad=True)
    unit(vectors).sum().backward()
    assert not unit(vectors).any()
    assert vectors.grad.isfinite().all()


def test_half_precision_becomes_float32_and_float64_stays():
    assert unit(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert unit(torch.ones(2, dtype=torch.float64)).dtype == torch.float64
