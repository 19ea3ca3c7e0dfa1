import pytest
import torch
from loss_cases import make_scores

from selhn.losses import SSP


def test_golden(check_golden_loss):
    check_golden_loss("loss_ssp", SSP.official())


def test_the_corrections_leave_cosines_that_are_not_low_alone(check_golden_loss):
    # In the recorded matrices no mined hardest negative scores below 0.0955 and no positive is 1.
    check_golden_loss("loss_ssp", SSP(weight=2.0))


def test_by_hand():
    # Image anchor 0 mines 0.6; anchor 1 is 0.3 ahead of its negative and mines nothing.
    scores = torch.tensor([[0.5, 0.6], [0.6, 0.9]], dtype=torch.float64)
    mined = 0.2 * 0.25 - 0.7 * 0.5 + 0.5 + 0.9 * 0.36 - 0.4 * 0.6 + 0.03
    expected = torch.tensor([[mined, 0.0]] * 2, dtype=torch.float64)
    torch.testing.assert_close(SSP(reduction="none")(scores), expected)
    torch.testing.assert_close(SSP.official()(scores), expected.sum() / 2)


def test_average_is_over_the_mined_negatives():
    scores = torch.tensor(
        [[0.5, 0.6, 0.4, 0.1], [0.0, 2.0, 0, 0], [0.0, 0, 2.0, 0], [0.0, 0, 0, 2.0]], dtype=torch.float64
    )
    of_negatives = [0.9 * s * s - 0.4 * s + 0.03 for s in (0.6, 0.4)]
    of_positive = 0.2 * 0.25 - 0.7 * 0.5 + 0.5
    loss = SSP(mining="average", reduction="none")(scores)[0, 0]
    assert abs(loss.item() - of_positive - sum(of_negatives) / 2) < 1e-12


@pytest.mark.parametrize("mining", ["hardest", "average"])
def test_a_low_negative_is_pulled_up_by_the_program_and_left_alone_by_us(mining):
    scores = torch.tensor([[-0.5, -0.4], [-0.4, -0.5]], requires_grad=True)
    (official,) = torch.autograd.grad(SSP.official(mining=mining)(scores), scores)
    (ours,) = torch.autograd.grad(SSP(mining=mining)(scores), scores)
    assert (official[[0, 1], [1, 0]] < 0).all()
    assert not ours[[0, 1], [1, 0]].any()
    assert (ours.diagonal() < 0).all()


def test_a_perfect_positive_ends_an_anchor_in_the_program_only():
    scores = torch.tensor([[1.0, 0.95], [0.0, 1.0]])
    assert SSP.official()(scores) == 0
    assert SSP()(scores) > 0


def test_a_positive_above_its_polynomial_is_not_pulled_down():
    scores = torch.tensor([[3.0, 3.1], [3.1, 3.0]], requires_grad=True)
    SSP()(scores).backward()
    assert not scores.grad.diagonal().any()
    (official,) = torch.autograd.grad(SSP.official(positive_below=torch.inf)(scores), scores)
    assert (official.diagonal() > 0).all()


def test_nothing_mined_still_has_a_gradient_of_zero():
    scores = (make_scores("trained", 6, 0) + torch.eye(6)).requires_grad_()
    loss = SSP.official()(scores)
    loss.backward()
    assert loss == 0
    assert not scores.grad.any()


def test_lists_are_taken_as_coefficients():
    assert repr(SSP(positive=[1, -1])) == repr(SSP(positive=(1, -1)))
