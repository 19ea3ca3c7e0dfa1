import math

import torch
from loss_cases import make_scores

from selhn.losses import UTO


def test_is_half_the_loss_of_the_authors_program():
    scores = make_scores("trained", 9, 0)
    negatives = (90 * (scores - 0.5)).exp() * ~torch.eye(9, dtype=torch.bool)
    smooth = ((1 + negatives.sum(0)).log() + (1 + negatives.sum(1)).log()) / 90
    expected = (smooth - (1 + scores.diagonal().relu()).log()).mean()
    torch.testing.assert_close(2 * UTO.paper()(scores), expected, rtol=1e-12, atol=1e-12)


def test_a_positive_rises_however_low_its_negatives_are():
    scores = (torch.full((4, 4), -0.9) + 1.4 * torch.eye(4)).requires_grad_()
    loss = UTO()(scores)
    loss.backward()
    assert math.isclose(loss.item(), -math.log(1.5) / 2, rel_tol=1e-6)
    torch.testing.assert_close(scores.grad, torch.eye(4) * (-1 / 1.5 / 8))
