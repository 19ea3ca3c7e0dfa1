import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import make_scores

from selhn.losses import TAL, TripletHN, create_loss


@given(
    kind=st.sampled_from(["spread", "collapsed", "trained"]),
    batch=st.integers(2, 12),
    seed=st.integers(0, 10_000),
)
def test_bounds_hardest_negative_mining_from_above(kind, batch, seed):
    scores = make_scores(kind, batch, seed)
    above = TAL(margin=0.2, temperature=0.05, reduction="none")(scores) - TripletHN(reduction="none")(scores)
    assert above.min() >= -1e-15
    assert above.max() <= 0.05 * math.log(batch - 1) + 1e-15


def test_its_margin_is_that_of_the_other_losses_and_the_authors_in_official():
    assert TAL().margin == create_loss("tal").margin == TripletHN().margin
    assert (TAL.official().margin, TAL.official().temperature, TAL.official(margin=0.3).margin) == (
        0.1,
        0.02,
        0.3,
    )


def test_without_temperature_it_is_hardest_negative_mining():
    scores = make_scores("spread", 9, 0)
    torch.testing.assert_close(TAL(margin=0.2, temperature=1e-5)(scores), TripletHN()(scores))


def test_by_hand():
    # Two equal negatives add temperature * log 2 to their score.
    scores = torch.tensor([[0.5, 0.4, 0.4], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]])
    losses = TAL(margin=0.1, temperature=0.1, reduction="none")(scores)
    torch.testing.assert_close(losses[0], torch.tensor([0.1 * math.log(2), 0.0, 0.0]))


def test_the_plateau_of_a_single_pair_is_its_loss():
    assert TAL().plateau(1) == TAL()(torch.zeros(1, 1)) == 0


def test_every_negative_has_its_share_of_the_gradient():
    scores = make_scores("collapsed", 8, 0).requires_grad_()
    TAL.official()(scores).backward()
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert (scores.grad[off_diagonal] > 0).all()
    torch.testing.assert_close(scores.grad.diagonal(), torch.full((8,), -2.0, dtype=torch.float64))


def test_a_small_temperature_does_not_overflow():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]], requires_grad=True)
    loss = TAL.official(temperature=1e-3)(scores)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(0.9 + 0.7 + 0.8 + 0.8))
    assert scores.grad.tolist() == [[-2.0, 2.0], [2.0, -2.0]]
