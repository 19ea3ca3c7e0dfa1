import numpy as np
import pytest
import torch
from loss_cases import make_scores

from selhn.losses import SSP


def coefficients(config):
    return {
        "margin": config["margin"],
        "positive": config["positive_poly"],
        "negative": config["negative_poly"],
    }


def test_golden(golden, check_golden_loss):
    _, config = golden("loss_ssp")
    check_golden_loss("loss_ssp", SSP.official(**coefficients(config)))


def test_the_corrections_leave_cosines_that_are_not_low_alone(golden):
    arrays, config = golden("loss_ssp")
    official, ours = SSP.official(**coefficients(config)), SSP(**coefficients(config), weight=2.0)
    # A mined negative below this root is raised by the authors' program, and a positive of 1 is left out.
    low, compared = np.roots(config["negative_poly"][::-1]).min(), 0
    for scores, loss, grad in zip(arrays["scores"], arrays["loss"], arrays["grad_scores"], strict=True):
        positive, negatives = scores.diagonal(), scores - 9 * np.eye(len(scores))
        hardest = np.stack([negatives.max(1), negatives.max(0)])
        is_mined = hardest > positive - config["margin"]
        if (hardest[is_mined] < low).any() or (positive >= official.positive_below).any():
            continue
        compared += 1
        scores = torch.from_numpy(scores).double().requires_grad_()
        ours(scores).backward()
        assert abs(ours(scores).item() - loss) < 1e-12
        torch.testing.assert_close(scores.grad, torch.from_numpy(grad), rtol=0, atol=1e-12)
    assert compared


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


def test_positives_may_have_to_be_below_a_negative_number():
    assert SSP(positive_below=-0.5)(torch.zeros(2, 2)) == 0


def test_lists_are_taken_as_coefficients():
    assert repr(SSP(positive=[1, -1])) == repr(SSP(positive=(1, -1)))
