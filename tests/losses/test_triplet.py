import torch

from selhn.losses import Triplet


def test_golden(check_golden_loss):
    check_golden_loss("loss_vsepp_sum", Triplet.official())
    check_golden_loss("loss_vsepp_sum", Triplet.paper())


def test_by_hand():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.7, 0.45], [0.0, 0.0, 0.3]])
    expected = [[0.1 + 0.0, 0.1 + 0.0, 0.0 + 0.0], [0.3 + 0.0, 0.0 + 0.0, 0.0 + 0.35]]
    torch.testing.assert_close(Triplet(reduction="none")(scores), torch.tensor(expected))


def test_no_gradient_where_the_hinge_is_exactly_zero():
    scores = torch.tensor([[0.5, 0.25], [0.0, 0.75]], requires_grad=True)
    Triplet(margin=0.25)(scores).backward()
    assert not scores.grad.any()
