import pytest
import torch
from torch import nn

from selhn.base.errors import SelhnError
from selhn.ops import MLP

ORDERS = ["fc-bn-relu-fc", "fc-bn-relu-fc-bn", "bn-fc-relu-bn-fc"]


def make_mlp(order="fc-bn-relu-fc", **settings):
    torch.manual_seed(0)
    mlp = MLP(6, 4, 5, order, **settings)
    for norm in mlp.bns:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return mlp


def plain(mlp, rows):
    """The same with a row an item, as a chain of layers."""
    (first, second), (norm, other) = mlp.layers, mlp.bns
    chains = {
        "fc-bn-relu-fc": [first, norm, nn.ReLU(), second],
        "fc-bn-relu-fc-bn": [first, norm, nn.ReLU(), second, other],
        "bn-fc-relu-bn-fc": [norm, first, nn.ReLU(), other, second],
    }
    return nn.Sequential(*chains[mlp.order])(rows)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("training", [True, False])
def test_the_order_of_the_layers(order, training):
    features, mask = torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool)
    ours, theirs = make_mlp(order).train(training), make_mlp(order).train(training)
    torch.testing.assert_close(ours(features, mask).flatten(0, 1), plain(theirs, features.flatten(0, 1)))
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[key], msg=key)


@pytest.mark.parametrize("order", ORDERS)
def test_masked_statistics_are_those_of_the_real_rows(order):
    features, mask = torch.randn(3, 4, 6), torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]]).bool()
    ours, theirs = make_mlp(order, mask_bn=True), make_mlp(order)
    torch.testing.assert_close(
        ours(features, mask)[mask], plain(theirs, features[mask]), rtol=1e-4, atol=1e-5
    )
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[key], msg=key)
    garbage = features.masked_fill(~mask[:, :, None], 1e3)
    torch.testing.assert_close(ours(garbage, mask)[mask], ours(features, mask)[mask])


def test_padding_takes_part_in_the_statistics_unless_masked():
    features, mask = torch.randn(2, 4, 6), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    moved = features.masked_fill(~mask[:, :, None], 9.0)
    official, masked = make_mlp(), make_mlp(mask_bn=True)
    assert not torch.allclose(official(features, mask)[mask], official(moved, mask)[mask])
    assert torch.allclose(masked(features, mask)[mask], masked(moved, mask)[mask], atol=1e-6)


def test_the_idle_batch_norm_takes_no_gradient_and_never_changes():
    mlp = make_mlp()
    mlp(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool)).sum().backward()
    assert [key for key, p in mlp.named_parameters() if not p.requires_grad] == ["bns.1.weight", "bns.1.bias"]
    assert mlp.bns[1].num_batches_tracked == 0
    assert mlp.bns[0].num_batches_tracked == 1
    for order in ORDERS[1:]:
        assert all(p.requires_grad for p in make_mlp(order).parameters())


def test_published_names_and_shapes():
    shapes = {key: tuple(value.shape) for key, value in MLP(2048, 512, 1024).state_dict().items()}
    assert shapes["layers.0.weight"] == (512, 2048)
    assert shapes["layers.1.weight"] == (1024, 512)
    assert shapes["bns.0.running_mean"] == (512,)
    assert shapes["bns.1.running_mean"] == (1024,)
    assert len(shapes) == 14


def test_unknown_order(as_a_user):
    with pytest.raises(SelhnError):
        MLP(2, 2, 2, "relu")
