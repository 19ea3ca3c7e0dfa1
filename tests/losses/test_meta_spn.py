import pytest
import torch
from loss_cases import make_ids, make_scores

from selhn.base.errors import SelhnError
from selhn.losses import MetaSPN, TripletHN


def trained():
    """A network whose weights differ from anchor to anchor."""
    loss_fn = MetaSPN(hidden=5)
    with torch.no_grad():
        loss_fn.network[2].weight.copy_(torch.linspace(-2, 2, 5))
    return loss_fn


def test_before_the_first_meta_step_it_is_hardest_negative_mining():
    scores = make_scores("spread", 7, 0)
    assert torch.equal(MetaSPN()(scores), TripletHN()(scores))


def test_the_network_is_the_same_every_time_and_draws_nothing_from_the_caller():
    before = torch.get_rng_state()
    first, second = MetaSPN(), MetaSPN()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.network[0].weight, second.network[0].weight)


def test_every_anchor_by_hand():
    loss_fn, scores, ids = trained(), make_scores("spread", 6, 1), make_ids(6, 1)
    (w1, b1), (w2, b2) = (
        (layer.weight.double(), layer.bias.double()) for layer in (loss_fn.network[0], loss_fn.network[2])
    )
    raw, hinges = torch.zeros(2, 6, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.float64)
    for direction, rows in enumerate((scores, scores.T)):
        for i in range(6):
            p, n = rows[i, i], rows[i][ids != ids[i]].max()
            raw[direction, i] = (
                (w2 @ (w1 @ torch.stack([p, n, p - n]) + b1).relu() + b2).sigmoid()[0].detach()
            )
            hinges[direction, i] = (n - p + 0.2).relu()
    assert raw.std() > 0.01
    expected = raw / raw.mean() * hinges
    torch.testing.assert_close(loss_fn.per_anchor(scores, ids), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss_fn.weights(scores, ids).mean(), torch.tensor(1.0, dtype=torch.float64))


def test_weights_carry_gradient_into_the_network_alone():
    loss_fn, scores = trained(), make_scores("spread", 6, 1).requires_grad_()
    loss_fn.weights(scores)[0].sum().backward()
    assert scores.grad is None
    assert loss_fn.network[0].weight.grad.any()
    loss_fn.zero_grad()
    loss_fn(scores).backward()
    assert scores.grad.any()
    assert loss_fn.network[0].weight.grad is None


@pytest.mark.parametrize("setting", ["hidden", "weight_lr"])
def test_bad_settings(setting):
    with pytest.raises(SelhnError, match=setting):
        MetaSPN(**{setting: 0})
