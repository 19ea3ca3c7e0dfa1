import math

import torch
from loss_cases import blocks_of, make_ids, make_scores
from torch.nn.functional import cross_entropy, logsigmoid

from selhn.losses import InfoNCE, MultiPositiveInfoNCE, MultiPositiveSigLIP, SigLIP

IDS = torch.tensor([4, 9, 4, 1, 9, 4])


def test_is_the_cross_entropy_with_an_even_target():
    scores = make_scores("trained", 6, 0)
    target = (IDS[:, None] == IDS).double()
    target /= target.sum(dim=1, keepdim=True)
    logits = scores / 0.2
    expected = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
    for loss_fn in (MultiPositiveInfoNCE(0.2), MultiPositiveInfoNCE.paper(temperature=0.2)):
        torch.testing.assert_close(loss_fn(scores, IDS), expected, rtol=1e-12, atol=1e-12)


def test_with_one_pair_an_image_it_is_infonce():
    scores = make_scores("spread", 8, 0)
    for ids in (None, torch.arange(8) * 3):
        assert torch.equal(MultiPositiveInfoNCE()(scores, ids), InfoNCE()(scores))


def test_equal_scores_leave_a_choice_among_all():
    loss = MultiPositiveInfoNCE()(torch.full((6, 6), 0.3, dtype=torch.float64), IDS)
    assert abs(loss.item() - math.log(6)) < 1e-12


def test_the_pairs_of_one_image_are_pulled_towards_the_anchor():
    scores = torch.zeros(6, 6, requires_grad=True)
    MultiPositiveInfoNCE()(scores, IDS).backward()
    same = IDS[:, None] == IDS
    assert (scores.grad[same] < 0).all()
    assert (scores.grad[~same] > 0).all()


def test_embeddings_of_one_image_need_not_stand_together():
    images, texts = torch.randn(2, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = make_ids(40, 3)
    with blocks_of(16):
        loss = MultiPositiveInfoNCE(0.5).from_embeddings(images, texts, ids)
    torch.testing.assert_close(loss, MultiPositiveInfoNCE(0.5)(images @ texts.T, ids), rtol=1e-12, atol=1e-12)


def test_the_sigmoid_form_is_that_of_flair():
    """Two images of three captions each, each image once: there the sum over all pairs is divided by the texts."""
    scores, ids = make_scores("trained", 6, 0)[[0, 1]], torch.arange(6) // 3
    labels = 2 * (torch.arange(2)[:, None] == ids).double() - 1
    flair = -logsigmoid(labels * (10 * scores - 10)).sum() / 6
    loss = MultiPositiveSigLIP(reduction="none")(scores[ids], ids)
    torch.testing.assert_close(loss[0].mean(), 3 * flair, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss[1].mean(), 3 * flair, rtol=1e-12, atol=1e-12)


def test_the_sigmoid_form_with_one_pair_an_image_is_siglip():
    scores = make_scores("spread", 8, 0)
    for learn in (False, True):
        torch.testing.assert_close(MultiPositiveSigLIP(learn=learn)(scores), SigLIP(learn=learn)(scores))
