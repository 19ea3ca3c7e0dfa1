import pytest
import torch
from loss_cases import make_scores

from selhn.kernels import STATISTICS, Terms, dense_statistics
from selhn.kernels.statistics import label_images, penalty

SCORES = torch.tensor(
    [[0.5, 0.9, 0.5, 0.4], [0.3, 0.1, 0.2, 0.1], [0.0, 0.2, 0.9, 0.0], [0.7, 0.0, 0.0, 0.6]]
)
SUMS = [name for name, statistic in STATISTICS.items() if statistic.derivative]
TERMS = Terms(0.2, 0.3, -1.0, polynomial=(0.03, -0.4, 0.9))
every_sum = pytest.mark.parametrize("name", SUMS)


def test_by_hand():
    needs = ("hardest", "hardest_below", "hardest_up_to", "hinge_sum")
    anchors = dense_statistics(SCORES, None, needs, Terms(margin=0.2))
    inf = torch.inf
    assert anchors.positive.tolist() == [SCORES.diagonal().tolist()]
    assert anchors.num_negatives.tolist() == [3, 3, 3, 3]
    torch.testing.assert_close(anchors["hardest"], torch.tensor([[0.9, 0.3, 0.2, 0.7], [0.7, 0.9, 0.5, 0.4]]))
    torch.testing.assert_close(
        anchors["hardest_below"], torch.tensor([[0.4, -inf, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]])
    )
    torch.testing.assert_close(
        anchors["hardest_up_to"], torch.tensor([[0.5, 0.1, 0.2, 0.0], [0.3, 0.0, 0.5, 0.4]])
    )
    torch.testing.assert_close(
        anchors["hinge_sum"], torch.tensor([[0.9, 0.9, 0.0, 0.3], [0.4, 1.4, 0.0, 0.0]])
    )


def test_sums_of_exponentials_by_hand():
    terms = Terms(temperature=0.5, bias=-1.0)
    anchors = dense_statistics(SCORES[:2, :2], None, ("log_sum_exp", "softplus_sum"), terms)
    torch.testing.assert_close(anchors["log_sum_exp"], torch.tensor([[1.8, 0.6], [0.6, 1.8]]))
    torch.testing.assert_close(
        anchors["softplus_sum"], torch.tensor([[0.8, -0.4], [-0.4, 0.8]]).exp().log1p()
    )


def test_mined_negatives_by_hand():
    anchors = dense_statistics(
        SCORES, None, ("mined_count", "mined_sum"), Terms(margin=0.1, polynomial=(-0.5, 1.0))
    )
    assert anchors["mined_count"].tolist() == [[2, 3, 0, 1], [1, 2, 0, 0]]
    torch.testing.assert_close(
        anchors["mined_sum"], torch.tensor([[0.4, 0.0, 0.0, 0.2], [0.2, 0.4, 0.0, 0.0]])
    )


def test_a_penalty_counts_where_it_goes_the_right_way():
    parabola, x = (1.0, -2.0, 1.0), torch.tensor([0.0, 1.0, 3.0])  # (x - 1)^2
    assert [penalty(parabola, x, direction).tolist() for direction in (0, 1, -1)] == [
        [1, 0, 4],
        [0, 0, 4],
        [1, 0, 0],
    ]
    assert penalty((), x, 1).tolist() == [0, 0, 0]


def test_a_falling_polynomial_pulls_the_other_way_unless_one_way():
    negatives, positive = (
        torch.tensor([[-0.5, 0.9]], dtype=torch.float64, requires_grad=True),
        torch.zeros(1).double(),
    )
    mined_sum = STATISTICS["mined_sum"]
    for one_way in (False, True):
        terms = Terms(1.0, polynomial=(0.03, -0.4, 0.9), one_way=one_way)
        (expected,) = torch.autograd.grad(mined_sum.of_rows(negatives, positive, terms).sum(), negatives)
        found = mined_sum.derivative(negatives, positive[:, None], terms) * mined_sum.steepness(terms)
        torch.testing.assert_close(found, expected)
        assert expected[0].sign().tolist() == [0 if one_way else -1, 1]


def test_positives_by_hand():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = dense_statistics(SCORES, ids, ("positive_mean",), Terms())
    expected = torch.tensor([[1.4 / 3, 0.1, 0.3, 1.3 / 3], [0.4, 0.1, 1.4 / 3, 1.0 / 3]])
    torch.testing.assert_close(anchors["positive_mean"], expected)


def test_unmasked_pairs_of_one_image_are_candidates():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = dense_statistics(SCORES, ids, ("hardest",), Terms(mask_same_image=False))
    assert torch.equal(anchors["hardest"], dense_statistics(SCORES, None, ("hardest",), Terms())["hardest"])
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]


def test_same_image_is_no_negative():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = dense_statistics(SCORES, ids, ("hardest",), Terms())
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]
    torch.testing.assert_close(anchors["hardest"], torch.tensor([[0.9, 0.3, 0.2, 0.0], [0.3, 0.9, 0.2, 0.1]]))


@every_sum
def test_parts_are_merged_to_the_whole(name):
    negatives, positive, terms = make_scores("spread", 8, 0), torch.zeros(8).double(), TERMS
    negatives[:, 2] = negatives[1, :5] = -torch.inf
    parts = [STATISTICS[name].of_rows(part, positive, terms) for part in (negatives[:, :5], negatives[:, 5:])]
    torch.testing.assert_close(
        STATISTICS[name].merge(*parts), STATISTICS[name].of_rows(negatives, positive, terms)
    )


@every_sum
def test_the_derivative_is_that_of_the_value(name):
    negatives, positive, terms = make_scores("spread", 8, 0).requires_grad_(), torch.zeros(8).double(), TERMS
    value = STATISTICS[name].of_rows(negatives, positive, terms)
    (expected,) = torch.autograd.grad(value.sum(), negatives)
    level = STATISTICS[name].level(positive, torch.stack([value, value]))[0]
    found = STATISTICS[name].derivative(negatives, level[:, None], terms)
    assert found.min() >= 0
    assert found.max() <= 1
    torch.testing.assert_close(found * STATISTICS[name].steepness(terms), expected)


@every_sum
def test_an_anchor_without_negatives_has_no_gradient(name):
    nothing, positive, terms = torch.full((2, 3), -torch.inf), torch.zeros(2), TERMS
    value = STATISTICS[name].of_rows(nothing, positive, terms)
    assert value.tolist() == [STATISTICS[name].empty] * 2
    level = STATISTICS[name].level(positive, value.expand(2, -1))[0]
    assert not STATISTICS[name].derivative(nothing, level[:, None], terms).any()


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
