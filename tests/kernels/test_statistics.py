import pytest
import torch
from loss_cases import make_scores

from selhn.kernels import Terms, dense_statistics
from selhn.kernels.statistics import label_images, merge_sums, pull, pull_level, row_statistic, steepness

SCORES = torch.tensor([[0.5, 0.9, 0.5, 0.4], [0.3, 0.1, 0.2, 0.1], [0.0, 0.2, 0.9, 0.0], [0.7, 0.0, 0.0, 0.6]])
SUMS = ("hinge_sum", "log_sum_exp", "softplus_sum")
every_sum = pytest.mark.parametrize("name", SUMS)


def test_by_hand():
    needs = ("hardest", "hardest_below", "hardest_up_to", "hinge_sum")
    anchors = dense_statistics(SCORES, None, needs, Terms(margin=0.2))
    inf = torch.inf
    assert anchors.positive.tolist() == [SCORES.diagonal().tolist()]
    assert anchors.num_negatives.tolist() == [3, 3, 3, 3]
    torch.testing.assert_close(anchors.hardest, torch.tensor([[0.9, 0.3, 0.2, 0.7], [0.7, 0.9, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hardest_below, torch.tensor([[0.4, -inf, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hardest_up_to, torch.tensor([[0.5, 0.1, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]]))
    torch.testing.assert_close(anchors.hinge_sum, torch.tensor([[0.9, 0.9, 0.0, 0.3], [0.4, 1.4, 0.0, 0.0]]))


def test_sums_of_exponentials_by_hand():
    terms = Terms(temperature=0.5, bias=-1.0)
    anchors = dense_statistics(SCORES[:2, :2], None, ("log_sum_exp", "softplus_sum"), terms)
    torch.testing.assert_close(anchors.log_sum_exp, torch.tensor([[1.8, 0.6], [0.6, 1.8]]))
    torch.testing.assert_close(anchors.softplus_sum, torch.tensor([[0.8, -0.4], [-0.4, 0.8]]).exp().log1p())


def test_same_image_is_no_negative():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = dense_statistics(SCORES, ids, ("hardest",), Terms())
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]
    torch.testing.assert_close(anchors.hardest, torch.tensor([[0.9, 0.3, 0.2, 0.0], [0.3, 0.9, 0.2, 0.1]]))


@every_sum
def test_parts_are_merged_to_the_whole(name):
    negatives, positive, terms = make_scores("spread", 8, 0), torch.zeros(8).double(), Terms(0.2, 0.3, -1.0)
    negatives[:, 2] = negatives[1, :5] = -torch.inf
    parts = [row_statistic(name, part, positive, terms) for part in (negatives[:, :5], negatives[:, 5:])]
    torch.testing.assert_close(merge_sums(name, *parts), row_statistic(name, negatives, positive, terms))


@every_sum
def test_pull_is_the_derivative(name):
    negatives, positive, terms = (
        make_scores("spread", 8, 0).requires_grad_(),
        torch.zeros(8).double(),
        Terms(0.2, 0.3, -1.0),
    )
    value = row_statistic(name, negatives, positive, terms)
    (expected,) = torch.autograd.grad(value.sum(), negatives)
    level = pull_level(name, positive, torch.stack([value, value]))[0]
    pulls = pull(name, negatives, level, terms)
    assert pulls.min() >= 0
    assert pulls.max() <= 1
    torch.testing.assert_close(pulls * steepness(name, terms), expected)


@every_sum
def test_an_anchor_without_negatives_pulls_at_nothing(name):
    nothing, positive, terms = torch.full((2, 3), -torch.inf), torch.zeros(2), Terms(0.2, 0.3, -1.0)
    value = row_statistic(name, nothing, positive, terms)
    assert value.tolist() == [-torch.inf if name == "log_sum_exp" else 0] * 2
    level = pull_level(name, positive, value.expand(2, -1))[0]
    assert not pull(name, nothing, level, terms).any()


def test_label_images():
    cpu = torch.device("cpu")
    labels, num_negatives = label_images(None, 3, cpu)
    assert labels.tolist() == [0, 1, 2]
    assert num_negatives.tolist() == [2, 2, 2]
    labels, num_negatives = label_images(torch.tensor([-1, 5, -1, 5, 0]), 5, cpu)
    assert (labels[:, None] == labels).int().tolist() == [
        [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip
    assert labels.min() >= 0
    assert num_negatives.tolist() == [3, 3, 3, 3, 4]
