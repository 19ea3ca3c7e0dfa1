"""Batch norms under a mask are torch's over the real rows alone, with their running statistics and gradients."""

import copy

import pytest
import torch
from torch import nn

from selhn.ops import masked_batch_norm
from selhn.ops.batch_norm import remembering_nothing, synced


def normed(norm, call, features):
    features = features.clone().requires_grad_()
    out = call(norm, features)
    out.square().sum().backward()
    kept = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    return out, features.grad, None if norm.weight is None else norm.weight.grad, kept


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_of_the_rows_under_a_mask(momentum):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, momentum=momentum).double()
    nn.init.uniform_(norm.weight)
    features, mask = torch.randn(3, 5, 4).double() * 3 + 1, torch.rand(3, 5) < 0.6
    plain = copy.deepcopy(norm)
    out, gradient, of_weight, kept = normed(
        norm, lambda own, x: masked_batch_norm(own, x, mask)[mask], features
    )
    expected = normed(plain, lambda own, x: own(x[mask]), features)
    torch.testing.assert_close((out, gradient, of_weight, kept), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5)])
@pytest.mark.parametrize(
    "settings", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}]
)
def test_synced_without_other_processes(shape, settings):
    torch.manual_seed(0)
    norm, features = nn.BatchNorm1d(4, **settings).double(), torch.randn(shape).double()
    norm(features + 1)  # not the first batch
    expected = normed(copy.deepcopy(norm), lambda own, x: own(x), features)
    with synced(norm):
        assert type(norm) is not nn.BatchNorm1d
        found = normed(norm, lambda own, x: own(x), features)
    assert type(norm) is nn.BatchNorm1d
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_that_is_encoded_again_counts_once():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False))
    model(torch.randn(6, 4))
    before = copy.deepcopy(model.state_dict())
    with remembering_nothing(model):
        model(torch.randn(6, 4))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
