import torch

from selhn.losses import TripletSHN


def test_golden(check_golden_loss):
    check_golden_loss("loss_shn_nca", TripletSHN.official())
    check_golden_loss("loss_shn_nca", TripletSHN(variant="nca"))


def test_takes_the_hardest_negative_strictly_below_the_positive():
    # Image anchor 0: 0.9 is above, 0.5 ties, 0.4 is the one; image anchor 1: nothing is below.
    scores = torch.tensor(
        [[0.5, 0.9, 0.5, 0.4], [0.3, 0.1, 0.2, 0.1], [0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.0, 0.9]],
        requires_grad=True,
    )
    losses = TripletSHN(reduction="none")(scores)
    torch.testing.assert_close(losses[0], torch.tensor([0.1, 0.0, 0.0, 0.0]))
    losses[0].sum().backward()
    assert scores.grad[0].tolist() == [-1.0, 0.0, 0.0, 1.0]
    assert not scores.grad[1].any()
