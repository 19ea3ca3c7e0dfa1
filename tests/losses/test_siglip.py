import torch
from loss_cases import make_scores
from torch.nn.functional import logsigmoid

from selhn.losses import SigLIP


def test_is_the_loss_of_the_paper():
    scores = make_scores("trained", 9, 0)
    logits = scores * 10 - 10  # t and b as the paper's training starts
    labels = 2 * torch.eye(9, dtype=torch.float64) - 1
    expected = -logsigmoid(labels * logits).sum() / 9
    torch.testing.assert_close(SigLIP()(scores), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(SigLIP.paper()(scores), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        SigLIP(reduction="none")(scores).mean(dim=1), expected.expand(2), rtol=1e-12, atol=1e-12
    )


def test_by_hand():
    losses = SigLIP(temperature=1.0, bias=0.0, reduction="none")(torch.zeros(3, 3))
    torch.testing.assert_close(losses, torch.full((2, 3), 3 * torch.tensor(2.0).log().item()))


def test_large_scores_neither_overflow_nor_lose_the_gradient():
    scores = torch.tensor([[-50.0, 40.0], [30.0, -60.0]], requires_grad=True)
    SigLIP(temperature=1.0, bias=0.0)(scores).backward()
    torch.testing.assert_close(scores.grad, torch.tensor([[-0.5, 0.5], [0.5, -0.5]]))
