import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import KINDS, blocks_of, hinge, make_embeddings, make_ids, make_scores

from selhn.base.errors import SelhnError
from selhn.losses import AOQ, OfflineScores, TripletHN

FORMS = {
    "default": AOQ,
    "official": AOQ.official,
    "with gradient": lambda: AOQ(weight_gradient=True, offline_margin=0.1),
    "negative": lambda: AOQ(negative_weight=True, reduction="sum"),
}
every_form = pytest.mark.parametrize("form", FORMS)


def make_given(batch, seed, dtype=torch.float64):
    noise = torch.randn(2, 2, batch, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    return OfflineScores(*(0.3 + 0.3 * noise).to(dtype))


def test_golden(golden):
    arrays, config = golden("loss_aoq")
    margins = {"margin": config["margin_online"], "offline_margin": config["margin_offline"]}
    loss_fn = AOQ.official(**margins, alpha=config["alpha"], beta=config["beta"])
    names = ["s_anchor_img_off_txt", "s_off_img_anchor_txt", "s_off_img_off_txt", "s_off2_img_off2_txt"]
    for k, matrix in enumerate(config["matrices"]):
        scores, *offline = (
            torch.from_numpy(arrays[name][k]).double().requires_grad_() for name in ("scores", *names)
        )
        offline_scores = OfflineScores(negative=torch.stack(offline[:2]), pair=torch.stack(offline[2:]))
        loss = loss_fn(scores, given=offline_scores)
        loss.backward()
        assert abs(loss.item() - arrays["loss"][k]) < 1e-12, matrix
        for name, value in zip(("scores", *names), (scores, *offline), strict=True):
            expected = torch.from_numpy(arrays[f"grad_{name}"][k])
            torch.testing.assert_close(value.grad, expected, rtol=0, atol=1e-12, msg=f"{matrix}: {name}")


def anchor_by_hand(f, p, negatives, offline, pair):
    loss = hinge(offline, p, f.offline_margin) + hinge(pair, p, f.offline_margin)
    if negatives:
        weight = f.beta - (offline - max(negatives)) / f.alpha
        loss += (weight if f.negative_weight else max(weight, 0.0)) * hinge(max(negatives), p, f.margin)
    return loss


@every_form
@given(
    kind=st.sampled_from(KINDS), batch=st.integers(1, 9), seed=st.integers(0, 10_000), with_ids=st.booleans()
)
def test_equals_the_double_loop(form, kind, batch, seed, with_ids):
    loss_fn, scores, offline = FORMS[form](), make_scores(kind, batch, seed), make_given(batch, seed)
    ids = make_ids(batch, seed) if with_ids else None
    same = torch.eye(batch).bool() if ids is None else ids[:, None] == ids
    expected = torch.tensor(
        [
            [
                anchor_by_hand(
                    loss_fn,
                    rows[i, i].item(),
                    rows[i][~same[i]].tolist(),
                    offline.negative[direction, i].item(),
                    offline.pair[direction, i].item(),
                )
                for i in range(batch)
            ]
            for direction, rows in enumerate((scores, scores.T))
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(
        loss_fn.per_anchor(scores, ids, given=offline), expected, rtol=1e-12, atol=1e-12
    )
    reduced = expected.sum() if loss_fn.reduction == "sum" else expected.mean()
    torch.testing.assert_close(loss_fn(scores, ids, given=offline), reduced, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "form", ["official", "with gradient"]
)  # a weight held fixed has no numerical derivative
def test_gradcheck(form):
    scores, offline = make_scores("trained", 6, 3).requires_grad_(), make_given(6, 0)
    inputs = (scores, offline.negative.requires_grad_(), offline.pair.requires_grad_())
    ids = torch.tensor([4, 4, 1, 2, 0, 3])
    assert torch.autograd.gradcheck(lambda s, *o: FORMS[form]()(s, ids, given=OfflineScores(*o)), inputs)


@every_form
def test_from_embeddings(form):
    images, texts = make_embeddings("trained", 30, 8, 0)
    ids, offline = make_ids(30, 0), make_given(30, 0)
    dense = FORMS[form]()(images @ texts.T, ids, given=offline)
    with blocks_of(8):
        from_blocks = FORMS[form]().from_embeddings(images, texts, ids, given=offline)
    torch.testing.assert_close(from_blocks, dense, rtol=1e-12, atol=1e-12)
    for actual, expected in zip(
        torch.autograd.grad(from_blocks, (images, texts)),
        torch.autograd.grad(dense, (images, texts)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@every_form
def test_without_negatives_in_the_batch_the_offline_terms_stay(form):
    scores, offline = make_scores("spread", 4, 0).requires_grad_(), make_given(4, 0)
    loss_fn = FORMS[form]()
    losses = loss_fn.per_anchor(scores, [5] * 4, given=offline)
    positive = scores.diagonal()
    offline_hinges = [
        (s - positive + loss_fn.offline_margin).relu() for s in (offline.negative, offline.pair)
    ]
    torch.testing.assert_close(losses, sum(offline_hinges))
    losses.sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad.clone().fill_diagonal_(0).any()


def test_the_weight_pulls_an_offline_negative_up_only_in_the_program():
    # Far below the positive: no offline hinge is active, only the weight knows the offline negatives.
    scores = torch.tensor([[0.6, 0.7], [0.5, 0.8]])
    negative = torch.full((2, 2), 0.1, requires_grad=True)
    offline = OfflineScores(negative, torch.zeros(2, 2))
    official, ours = (
        torch.autograd.grad(f(scores, given=offline), negative)[0] for f in (AOQ.official(), AOQ())
    )
    assert (official <= 0).all()
    assert official.any()
    assert not ours.any()


def test_a_weight_below_zero():
    scores, given_scores = torch.tensor([[0.5, 0.45], [0.45, 0.5]]), torch.full((2, 2), 0.99)
    offline = OfflineScores(given_scores, torch.zeros(2, 2))
    losses = [f(reduction="none")(scores, given=offline) for f in (AOQ.official, AOQ)]
    torch.testing.assert_close(losses[1], torch.full((2, 2), 0.49))
    assert (losses[0] < losses[1]).all()


def test_without_offline_terms_it_is_weighted_hardest_negative_mining():
    scores = make_scores("spread", 7, 0)
    hardest = torch.stack([rows.clone().fill_diagonal_(-9).amax(dim=1) for rows in (scores, scores.T)])
    offline = OfflineScores(hardest.clamp(max=-9), hardest.clamp(max=-9))
    losses = AOQ(alpha=math.inf, beta=1.0, reduction="none")(scores, given=offline)
    torch.testing.assert_close(losses, TripletHN(reduction="none")(scores))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_worked_on_in_float32(dtype):
    scores, offline = make_scores("collapsed", 9, 2, dtype=dtype), make_given(9, 0, dtype)
    wide = OfflineScores(offline.negative.float(), offline.pair.float())
    loss = AOQ()(scores, given=offline)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, AOQ()(scores.float(), given=wide))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("negative", "pair", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), "negative of"),
        (torch.zeros(2, 4), torch.zeros(4), "pair of"),
        (torch.zeros(2, 4), torch.full((2, 4), math.nan), "NaN"),
        (torch.zeros(2, 4), [[0.0]], "list"),
    ],
)
def test_bad_offline_scores(negative, pair, message):
    with pytest.raises(SelhnError, match=message):
        AOQ()(torch.zeros(4, 4), given=OfflineScores(negative, pair))


def test_only_offline_scores_are_taken():
    with pytest.raises(SelhnError):
        AOQ()(torch.zeros(4, 4), given=torch.zeros(2, 4))
    with pytest.raises(SelhnError):
        AOQ().from_embeddings(torch.zeros(4, 3), torch.zeros(4, 3), given=torch.zeros(2, 4))


def test_without_offline_scores_it_is_hardest_negative_mining():
    scores = make_scores("spread", 7, 0)
    assert torch.equal(AOQ()(scores), TripletHN()(scores))


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 0), ("beta", -1.0), ("offline_margin", -0.1), ("depth", 0), ("refresh", 0)]
)
def test_bad_settings(name, value):
    with pytest.raises(SelhnError, match=name):
        AOQ(**{name: value})


def test_a_single_negative_is_deep_enough():
    assert (AOQ(depth=1).depth, AOQ(refresh=1).refresh) == (1, 1)
