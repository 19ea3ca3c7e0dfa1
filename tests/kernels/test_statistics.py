import torch

from selhn.kernels import dense_statistics
from selhn.kernels.statistics import count_negatives

SCORES = torch.tensor([[0.5, 0.9, 0.5, 0.4], [0.3, 0.1, 0.2, 0.1], [0.0, 0.2, 0.9, 0.0], [0.7, 0.0, 0.0, 0.6]])


def test_by_hand():
    anchors = dense_statistics(SCORES, None, 0.2, ("hardest", "hardest_below", "hardest_up_to", "hinge_sum"))
    inf = torch.inf
    assert anchors.positive.tolist() == [SCORES.diagonal().tolist()]
    assert anchors.num_negatives.tolist() == [3, 3, 3, 3]
    torch.testing.assert_close(anchors.hardest, torch.tensor([[0.9, 0.3, 0.2, 0.7], [0.7, 0.9, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hardest_below, torch.tensor([[0.4, -inf, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hardest_up_to, torch.tensor([[0.5, 0.1, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hinge_sum, torch.tensor([[0.9, 0.9, 0.0, 0.3], [0.4, 1.4, 0.0, 0.0]]))


def test_same_image_is_no_negative():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = dense_statistics(SCORES, ids, 0.2, ("hardest",))
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]
    torch.testing.assert_close(anchors.hardest, torch.tensor([[0.9, 0.3, 0.2, 0.0], [0.3, 0.9, 0.2, 0.1]]))


def test_count_negatives():
    assert count_negatives(None, 3, torch.device("cpu")).tolist() == [2, 2, 2]
    assert count_negatives(torch.tensor([-1, 5, -1, 5, 0]), 5, torch.device("cpu")).tolist() == [3, 3, 3, 3, 4]
