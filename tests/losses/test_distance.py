import torch
from loss_cases import blocks_of, make_embeddings, make_scores

from selhn.losses import TripletDistance, TripletHN, TripletSelHN


def test_a_collapsed_model_weighs_all_negatives_alike():
    scores = make_scores("collapsed", 9, 0)  # cosines of 0.9
    averaging = TripletSelHN(epsilon=1.0, reduction="none")
    torch.testing.assert_close(
        TripletDistance(reduction="none")(scores), averaging(scores), rtol=1e-12, atol=1e-12
    )


def test_far_from_there_it_is_almost_the_hardest_negative():
    scores = torch.tensor([[0.5, 0.4, 0.3], [0.3, 0.5, 0.4], [0.4, 0.3, 0.5]], dtype=torch.float64)
    difference = TripletHN()(scores) - TripletDistance()(scores)
    assert 0 < difference < 0.1 * 1e-5, "the weights differ by more than 10^5"


def test_an_easy_negative_is_as_rare_as_a_hard_one():
    """Weights are nearly symmetric about a cosine of 0: half of what is drawn here is too easy to count."""
    scores = torch.tensor([[0.5, 0.4, -0.4], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64)
    easy_and_hard = TripletDistance(reduction="none")(scores)[0, 0]
    assert 0.5 * 0.1 < easy_and_hard < 0.7 * 0.1, "the hinge of the hard one is 0.1"


def test_the_drawn_triplets_of_the_authors_have_this_mean():
    """Their steps: log weights, minus the largest, normalised, and then a draw; here of all that can be drawn."""
    scores = make_scores("trained", 8, 0)
    far = (2 - 2 * scores).sqrt().clamp(min=0.5)
    log_weight = (2 - 512) * far.log() - (512 - 3) / 2 * (1 - 0.25 * far**2).log()
    negative = ~torch.eye(8, dtype=torch.bool)
    expected = 0.0
    for s, log_w in ((scores, log_weight), (scores.T, log_weight.T)):
        chance = (log_w - log_w.max(dim=1, keepdim=True).values).exp() * (
            negative & ((2 - 2 * s).sqrt() < 1.7)
        )
        chance = chance / chance.sum(dim=1, keepdim=True)
        expected = expected + (chance * (0.2 + s - s.diagonal()[:, None]).relu()).sum()
    torch.testing.assert_close(TripletDistance.official()(scores), expected, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_the_share_of_each_negative_and_not_of_its_weight():
    scores = torch.tensor(
        [[0.5, 0.4, -0.6], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]], dtype=torch.float64, requires_grad=True
    )
    TripletDistance(dim=3, reduction="none")(scores)[0, 0].backward()
    expected = torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64)  # the last is too far to be drawn
    torch.testing.assert_close(scores.grad[0], expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_small_hinges_in_half_precision():
    images, texts = (emb.detach() for emb in make_embeddings("trained", 40, 64, 0))
    margin = (
        1e-3 - TripletHN(margin=1.0, reduction="none")(images @ texts.T).max().item() + 1.0
    )  # the largest: 0.001
    gradients = []
    for dtype in (torch.float64, torch.float16):
        embs = [emb.half().to(dtype).requires_grad_() for emb in (images, texts)]
        with blocks_of(16):
            TripletDistance(margin=max(margin, 0.0)).from_embeddings(*embs).backward()
        gradients.append(embs[0].grad.double())
    assert gradients[0].any()
    torch.testing.assert_close(
        gradients[1], gradients[0], rtol=0.02, atol=0.02 * gradients[0].abs().max().item()
    )
