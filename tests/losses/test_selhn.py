import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import make_scores

from selhn.losses import Triplet, TripletHN, TripletSelHN

RECORDED = ("loss_selhn", "loss_selhn_eps0.1", "loss_selhn_eps0")
matrices = st.builds(
    make_scores,
    st.sampled_from(["spread", "collapsed", "trained"]),
    st.integers(2, 12),
    st.integers(0, 10_000),
)


def test_golden(check_golden_loss):
    for name in RECORDED:
        check_golden_loss(name, TripletSelHN.official())


def test_golden_branches(golden):
    for name in RECORDED:
        arrays, config = golden(name)
        for matrix, scores in zip(config["matrices"], arrays["scores"], strict=True):
            mined = TripletSelHN.official(epsilon=config["epsilon"]).mined(torch.from_numpy(scores).double())
            assert (~mined).int().tolist() == config["average_branch_anchors"][matrix], (name, matrix)


@given(matrices)
def test_epsilon_zero_is_hardest_negative_mining(scores):
    torch.testing.assert_close(TripletSelHN(epsilon=0.0)(scores), TripletHN()(scores), rtol=0, atol=0)


@given(matrices)
def test_infinite_epsilon_is_the_average(scores):
    average = Triplet(reduction="none")(scores) / (len(scores) - 1)
    torch.testing.assert_close(
        TripletSelHN(epsilon=torch.inf, reduction="none")(scores), average, rtol=0, atol=0
    )


@given(matrices)
def test_every_anchor_takes_one_of_the_two_branches(scores):
    loss_fn = TripletSelHN()
    average = Triplet(reduction="none")(scores) / (len(scores) - 1)
    expected = torch.where(loss_fn.mined(scores), TripletHN(reduction="none")(scores), average)
    torch.testing.assert_close(loss_fn.per_anchor(scores), expected, rtol=0, atol=0)


@given(matrices)
def test_presets_differ_by_known_factors(scores):
    batch = len(scores)
    default = TripletSelHN(reduction="none")(scores)
    paper = TripletSelHN.paper(reduction="none")(scores)
    mined = TripletSelHN().mined(scores)
    torch.testing.assert_close(paper, torch.where(mined, default, default * (batch - 1) / batch))
    torch.testing.assert_close(TripletSelHN.paper()(scores), paper.sum())
    torch.testing.assert_close(TripletSelHN.official()(scores), default.mean())


def test_delta_s_equal_to_epsilon():
    # Image anchor 0: hardest negative exactly 1/8 above the positive.
    scores = torch.tensor([[0.5, 0.625, 0.0], [-1.0, 0.75, 0.0], [-1.0, 0.0, 0.75]])
    assert not TripletSelHN(epsilon=0.125).mined(scores)[0, 0]
    assert TripletSelHN.official(epsilon=0.125).mined(scores)[0, 0]
    assert not TripletSelHN.paper(epsilon=0.125).mined(scores)[0, 0]


def test_average_counts_true_negatives_only():
    scores, ids = torch.zeros(4, 4, dtype=torch.float64), torch.tensor([7, 7, 1, 2])
    expected = torch.full((2, 4), 0.2, dtype=torch.float64)
    torch.testing.assert_close(TripletSelHN(reduction="none")(scores, ids), expected)
    paper = TripletSelHN.paper(reduction="none")(scores, ids)
    torch.testing.assert_close(paper[0], torch.tensor([2, 2, 3, 3], dtype=torch.float64) * 0.2 / 4)


def test_selection_is_made_in_float32_and_float64_stays():
    # 1e-9 decides: float32 cannot see it, float64 must.
    scores = torch.tensor([[0.5, 0.51 + 1e-9], [0.0, 0.9]], dtype=torch.float64)
    assert TripletSelHN(epsilon=0.01).mined(scores)[0, 0]
    assert TripletSelHN()(scores).dtype == torch.float64


def test_the_decision_carries_no_gradient():
    scores = make_scores("spread", 6, 0).requires_grad_()
    assert not TripletSelHN().mined(scores).requires_grad


def test_collapsed_batch_averages_and_its_gradient_reaches_every_negative():
    scores = make_scores("collapsed", 8, 0).requires_grad_()
    loss_fn = TripletSelHN()
    assert not loss_fn.mined(scores).any()
    loss_fn(scores).backward()
    assert (scores.grad != 0).all()
