import pytest
import torch

from selhn.ops.pooling import pool_sorted

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(batch, size, dim, device="cpu", dtype=torch.float32, ties=False):
    generator = torch.Generator().manual_seed(batch * 1000 + size)
    features = torch.randn(batch, size, dim, generator=generator)
    if ties:
        features = (features * 2).round() / 2
    mask = torch.rand(batch, size, generator=generator) < 0.7
    mask[:, 0] |= ~mask.any(1)
    weights = torch.randn(batch, size, generator=generator)
    return features.to(device, dtype), mask.to(device), weights.to(device)


def one_by_one(features, mask, weights):
    """The definition, channel by channel."""
    pooled = torch.zeros(len(features), features.shape[2], dtype=torch.float64)
    for b in range(len(features)):
        for c in range(features.shape[2]):
            values = sorted(features[b, mask[b], c].tolist(), reverse=True)
            pooled[b, c] = sum(w * v for w, v in zip(weights[b].tolist(), values))
    return pooled


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 36, 40), (4, 23, 100), (2, 100, 33)])
def test_it_is_the_weighted_sum_of_what_is_sorted(shape, ties, device):
    features, mask, weights = make(*shape, device, ties=ties)
    expected = one_by_one(features.cpu().double(), mask.cpu(), weights.cpu().double())
    assert torch.allclose(pool_sorted(features, mask, weights).cpu().double(), expected, atol=1e-5)


def test_gradients():
    features, mask, weights = make(2, 6, 3)
    leaves = [features.double().requires_grad_(), mask, weights.double().requires_grad_()]
    assert torch.autograd.gradcheck(pool_sorted, leaves)


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_set_is_zero(device):
    features, mask, weights = make(2, 4, 3, device)
    mask[0] = False
    features.requires_grad_()
    pooled = pool_sorted(features, mask, weights)
    assert (pooled[0] == 0).all()
    pooled.sum().backward()
    assert (features.grad[0] == 0).all()
    assert (features.grad[~mask] == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(128, 36, 1024), (5, 23, 65), (3, 128, 40), (7, 129, 20)])
def test_the_kernel_has_the_gradients_of_sorting(shape, dtype):
    _, mask, weights = make(*shape, "cuda")
    # All different, and exact in half precision: where values tie, either may get the gradient.
    features = (torch.rand(shape, device="cuda").argsort(dim=1) * 0.25 - 4).to(dtype)
    grad = torch.randn(shape[0], shape[2], device="cuda")
    results = []
    for cast in (lambda tensor: tensor.double(), lambda tensor: tensor):
        leaves = [cast(tensor).detach().requires_grad_() for tensor in (features, weights)]
        pooled = pool_sorted(leaves[0], mask, leaves[1])
        pooled.backward(grad.to(pooled.dtype))
        results.append([pooled, *(leaf.grad for leaf in leaves)])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for expected, actual in zip(*results):
        assert ((actual.double() - expected).norm() / expected.norm()).item() < tolerance
