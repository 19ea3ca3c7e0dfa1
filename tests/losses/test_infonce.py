import torch
from loss_cases import make_scores
from torch.nn.functional import cross_entropy

from selhn.losses import InfoNCE


def test_is_the_cross_entropy_of_clip():
    scores = make_scores("trained", 9, 0)
    target = torch.arange(9)
    for temperature in (0.07, 1.0):
        logits = scores / temperature
        expected = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
        torch.testing.assert_close(InfoNCE(temperature)(scores), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            InfoNCE.paper(temperature=temperature)(scores), expected, rtol=1e-12, atol=1e-12
        )


def test_equal_scores_leave_a_choice_among_all():
    torch.testing.assert_close(InfoNCE()(torch.full((8, 8), 0.3)), torch.tensor(8.0).log())


def test_pairs_of_one_image_are_in_no_denominator():
    scores = torch.tensor([[0.4, 5.0, 0.4], [5.0, 0.4, 0.4], [0.4, 0.4, 0.4]])
    losses = InfoNCE(reduction="none")(scores, image_ids=[1, 1, 2])
    torch.testing.assert_close(losses, torch.tensor([[2.0, 2.0, 3.0]] * 2).log())


def test_a_learnt_temperature_by_scaled_embeddings():
    images, texts = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor(14.0, dtype=torch.float64, requires_grad=True)
    loss = InfoNCE(temperature=1)(scale * images @ texts.T)
    loss.backward()
    torch.testing.assert_close(
        loss.detach(), InfoNCE(temperature=1 / 14)(images @ texts.T), rtol=1e-12, atol=1e-12
    )
    assert scale.grad != 0
