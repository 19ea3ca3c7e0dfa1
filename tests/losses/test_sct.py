import torch

from selhn.losses import SCT


def test_golden(check_golden_loss):
    check_golden_loss("loss_sct_nca", SCT.official())
    check_golden_loss("loss_sct_nca", SCT(variant="nca"))


def test_a_hard_negative_is_pushed_alone():
    scores = torch.tensor([[0.3, 0.6], [0.1, 0.9]], requires_grad=True)
    losses = SCT(reduction="none")(scores)
    torch.testing.assert_close(losses, torch.tensor([[0.6, 0.0], [0.0, 0.0]]))
    losses.sum().backward()
    assert scores.grad.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_a_tie_is_contrastive_in_the_paper_and_left_out_by_the_code():
    scores = torch.tensor([[0.5, 0.5], [0.0, 0.9]])
    assert SCT(reduction="none")(scores)[0, 0] == 0.5
    official = SCT.official(reduction="none")(scores)
    assert official[0, 0] == 0
    torch.testing.assert_close(SCT.official()(scores), official.sum() / 3)


def test_a_negative_at_the_threshold_is_neither_hard_nor_contrastive():
    scores = torch.tensor([[0.75, 0.5], [0.25, 0.75]])
    losses = SCT(variant="nca", hard_threshold=0.5, reduction="none")(scores)
    assert losses[0, 0] == losses[1, 1] == 0
    assert (losses[0, 1] > 0) & (losses[1, 0] > 0)


def test_a_mean_may_be_over_a_single_anchor():
    scores = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.25, 0.25, 0.5]])
    settings = {"variant": "nca", "hard_threshold": 0.9}
    each = SCT(**settings, reduction="none")(scores)
    assert each.count_nonzero() == 1, "all others tie"
    assert SCT(**settings)(scores) == each.sum()


def test_the_value_may_be_negative():
    scores = torch.tensor([[-0.9, -0.5], [-0.5, -0.9]])
    assert SCT()(scores) == -0.5
