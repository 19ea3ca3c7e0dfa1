import torch

from selhn.losses import TripletHN


def test_golden(check_golden_loss):
    check_golden_loss("loss_vsepp_max", TripletHN.official())
    check_golden_loss("loss_vsepp_max", TripletHN.paper())
    check_golden_loss("loss_hn_nca", TripletHN(variant="nca"))
    check_golden_loss("loss_hn_nca", TripletHN.official(variant="nca"))


def test_a_collapsed_model_sits_at_the_margin():
    scores = torch.full((128, 128), 0.97)
    assert abs(TripletHN()(scores).item() - 0.2) < 1e-6
    assert abs(TripletHN.official()(scores).item() - 2 * 128 * 0.2) < 1e-4


def test_equal_negatives_the_first_takes_the_gradient():
    scores = torch.tensor([[0.2, 0.5, 0.5], [0.5, 0.9, 0.0], [0.5, 0.0, 0.9]], requires_grad=True)
    TripletHN.official()(scores).backward()
    assert scores.grad[0].tolist() == [-2.0, 1.0, 0.0]
    assert scores.grad[:, 0].tolist() == [-2.0, 1.0, 0.0]


def test_scores_need_not_be_cosines():
    # A masking value such as -1 would win over these negatives.
    scores = torch.tensor([[-5.0, -5.5], [-6.0, -5.0]])
    torch.testing.assert_close(
        TripletHN(margin=1.0, reduction="none")(scores), torch.tensor([[0.5, 0.0], [0.0, 0.5]])
    )
