from dataclasses import replace

import pytest
import torch
from loss_cases import CASES, blocks_of, make_embeddings, make_scores

from selhn.base.types import Products
from selhn.losses import STATISTICS
from selhn.losses.anchors import anchor_statistics
from selhn.losses.ssp import penalty
from selhn.losses.statistics import label_images, with_constants

SCORES = torch.tensor(
    [[0.5, 0.9, 0.5, 0.4], [0.3, 0.1, 0.2, 0.1], [0.0, 0.2, 0.9, 0.0], [0.7, 0.0, 0.0, 0.6]]
)
CONSTANTS = dict.fromkeys(STATISTICS, ())
for case in CASES.values():
    CONSTANTS |= with_constants(case.make().needs)


def test_by_hand():
    needs = {"hardest": (), "hardest_below": (), "hardest_up_to": (), "hinge_sum": (0.2,)}
    anchors = anchor_statistics(SCORES, None, needs)
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
    needs = {"log_sum_exp": (0.5,), "softplus_sum": (0.5, -1.0)}
    anchors = anchor_statistics(SCORES[:2, :2], None, needs)
    torch.testing.assert_close(anchors["log_sum_exp"], torch.tensor([[1.8, 0.6], [0.6, 1.8]]))
    torch.testing.assert_close(
        anchors["softplus_sum"], torch.tensor([[0.8, -0.4], [-0.4, 0.8]]).exp().log1p()
    )


def test_mined_negatives_by_hand():
    anchors = anchor_statistics(SCORES, None, {"mined_count": (0.1,), "mined_sum": (0.1, 1, -0.5, 1.0)})
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
    negatives = torch.tensor([[-0.5, 0.9]], dtype=torch.float64, requires_grad=True)
    for one_way in (False, True):
        constants = (1.0, int(one_way), 0.03, -0.4, 0.9)
        value = STATISTICS["mined_sum"].of_rows(negatives, torch.zeros(1).double(), constants)
        (found,) = torch.autograd.grad(value.sum(), negatives)
        assert found[0].sign().tolist() == [0 if one_way else -1, 1]


def test_positives_by_hand():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = anchor_statistics(SCORES, ids, ("positive_mean",))
    expected = torch.tensor([[1.4 / 3, 0.1, 0.3, 1.3 / 3], [0.4, 0.1, 1.4 / 3, 1.0 / 3]])
    torch.testing.assert_close(anchors["positive_mean"], expected)


def test_unmasked_pairs_of_one_image_are_candidates():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = anchor_statistics(SCORES, ids, ("hardest",), mask_same_image=False)
    assert torch.equal(anchors["hardest"], anchor_statistics(SCORES, None, ("hardest",))["hardest"])
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]


def test_same_image_is_no_negative():
    ids = torch.tensor([8, 2, 8, 8])
    anchors = anchor_statistics(SCORES, ids, ("hardest",))
    assert anchors.num_negatives.tolist() == [1, 3, 1, 1]
    torch.testing.assert_close(anchors["hardest"], torch.tensor([[0.9, 0.3, 0.2, 0.0], [0.3, 0.9, 0.2, 0.1]]))


with_slope = pytest.mark.parametrize("name", [name for name, one in STATISTICS.items() if one.slope])


@with_slope
def test_a_written_slope_is_the_derivative(name):
    negatives, positive = (
        make_scores("spread", 8, 0).requires_grad_(),
        torch.zeros(8, 1).double().requires_grad_(),
    )
    statistic, constants = STATISTICS[name], CONSTANTS[name]
    terms = statistic.terms(negatives, positive, constants)
    by_score, by_positive = torch.autograd.grad(terms.sum(), (negatives, positive), allow_unused=True)
    inputs = (negatives.detach(),) if statistic.alone else (negatives.detach(), positive.detach())
    slope = torch.as_tensor(statistic.slope(*inputs, *constants), dtype=torch.float64).expand(8, 8)
    torch.testing.assert_close(slope, by_score)
    if not statistic.alone:
        torch.testing.assert_close(-slope.sum(1, keepdim=True), by_positive)
    assert statistic.reduction in ("sum", "logsumexp")


@with_slope
def test_a_slope_is_a_speed_up_and_no_more(name, monkeypatch):
    images, texts = make_embeddings("trained", 40, 4, 0)
    weight = torch.randn(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients():
        anchors = anchor_statistics(Products(images, texts), None, {name: CONSTANTS[name]})
        return torch.autograd.grad((weight * anchors[name]).sum(), (images, texts))

    with blocks_of(16):
        written = gradients()
        monkeypatch.setitem(STATISTICS, name, replace(STATISTICS[name], slope=None))
        for ours, autograd in zip(written, gradients(), strict=True):
            torch.testing.assert_close(ours, autograd, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_an_anchor_without_negatives_has_a_value_and_no_gradient(name):
    nothing, positive = torch.full((2, 3), -torch.inf, requires_grad=True), torch.zeros(2)
    value = STATISTICS[name].of_rows(nothing, positive, CONSTANTS[name])
    assert value.tolist() == [0.0 if STATISTICS[name].reduction == "sum" else -torch.inf] * 2
    needs, scores = {name: CONSTANTS[name]}, torch.zeros(2, 2, requires_grad=True)
    with blocks_of(2):
        anchors = anchor_statistics(scores, torch.zeros(2, dtype=torch.int64), needs)
        torch.testing.assert_close(anchors[name], value.detach().expand(2, 2))
        anchors[name].sum().backward()
    # Of a maximum or another reduction it is up to the loss: the value is -inf.
    assert not scores.grad.any() or STATISTICS[name].reduction not in ("sum", "logsumexp")


def test_label_images():
    cpu = torch.device("cpu")
    labels, num_negatives = label_images(None, 3, cpu)
    assert labels is None
    assert num_negatives.tolist() == [2, 2, 2]
    labels, num_negatives = label_images(torch.tensor([-1, 5, -1, 5, 0]), 5, cpu)
    assert (labels[:, None] == labels).int().tolist() == [
        [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip
    assert labels.min() >= 0
    assert num_negatives.tolist() == [3, 3, 3, 3, 4]
