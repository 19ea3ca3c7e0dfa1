import torch

from selhn.losses import Triplet


def test_golden(check_golden_loss):
    check_golden_loss("loss_vsepp_sum", Triplet.official())
    check_golden_loss("loss_vsepp_sum", Triplet.paper())


def test_by_hand():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.7, 0.45], [0.0, 0.0, 0.3]])
    expected = [[0.1 + 0.0, 0.1 + 0.0, 0.0 + 0.0], [0.3 + 0.0, 0.0 + 0.0, 0.0 + 0.35]]
    torch.testing.assert_close(Triplet(reduction="none")(scores), torch.tensor(expected))


def test_no_gradient_where_the_hinge_is_exactly_zero():
    scores = torch.tensor([[0.5, 0.25], [0.0, 0.75]], requires_grad=True)
    Triplet(margin=0.25)(scores).backward()
    assert not scores.grad.any()


def test_anchors_of_one_kind():
    """The loss of DeViSE counts images only."""
    scores, ids = torch.randn(5, 5).div(4).requires_grad_(), torch.tensor([0, 1, 2, 1, 3])
    pairs = [(i, j) for i in range(5) for j in range(5) if ids[i] != ids[j]]
    images = sum((0.1 - scores[i, i] + scores[i, j]).relu() for i, j in pairs)
    texts = sum((0.1 - scores[j, j] + scores[i, j]).relu() for i, j in pairs)
    for anchors, expected in (("images", images), ("texts", texts), ("both", images + texts)):
        loss = Triplet(margin=0.1, reduction="sum", anchors=anchors)(scores, ids)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, scores, retain_graph=True)[0] for value in (loss, expected))
        )
    torch.testing.assert_close(Triplet(margin=0.1, anchors="texts")(scores, ids), texts / 5)
    vectors = torch.randn(2, 5, 3)
    one_side = Triplet(anchors="images")
    torch.testing.assert_close(
        one_side.from_embeddings(*vectors, ids), one_side(vectors[0] @ vectors[1].T, ids)
    )
