"""What holds for every loss of the table, in every form."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, HELD, KINDS, PULLS_POSITIVES_TOGETHER, make_ids, make_scores, per_anchor
from typer.testing import CliRunner

from selhn.base.errors import NotFound, SelhnError
from selhn.cli import app
from selhn.losses import (
    LOSSES,
    TAL,
    UTO,
    AbstractLoss,
    InfoNCE,
    MultiPositiveInfoNCE,
    OfflineScores,
    SigLIP,
    TakesGiven,
    TripletHN,
    TripletSelHN,
    create_loss,
    list_losses,
    loss_settings,
    register_loss,
)

every_case = pytest.mark.parametrize("case", CASES)
batches = st.integers(1, 9)
seeds = st.integers(0, 10_000)
shared = settings(max_examples=10)  # properties that follow from code that all losses share
kinds = st.sampled_from(KINDS)


def value_and_grad(loss_fn, scores, **kwargs):
    scores = scores.clone().requires_grad_()
    loss = loss_fn(scores, **kwargs)
    loss.backward()
    return loss.detach(), scores.grad


def test_every_loss_has_a_case():
    assert {case.name for case in CASES.values()} == set(LOSSES)


@every_case
@given(kind=kinds, batch=batches, seed=seeds, with_ids=st.booleans())
def test_equals_the_double_loop(case, kind, batch, seed, with_ids):
    loss_fn, scores = CASES[case].make(), make_scores(kind, batch, seed)
    ids = make_ids(batch, seed) if with_ids else None
    losses = per_anchor(case, loss_fn, scores.tolist(), ids)
    expected = torch.tensor([[loss or 0.0 for loss in row] for row in losses], dtype=torch.float64)
    torch.testing.assert_close(loss_fn.per_anchor(scores, image_ids=ids), expected, rtol=1e-12, atol=1e-12)
    count = max(1, sum(loss is not None for row in losses for loss in row))
    reduced = expected.sum() / (1 if loss_fn.reduction == "sum" else count)
    torch.testing.assert_close(loss_fn(scores, ids), reduced, rtol=1e-12, atol=1e-12)


@every_case
@shared
@given(kind=kinds, batch=batches, seed=seeds)
def test_images_and_texts_change_places(case, kind, batch, seed):
    loss_fn, scores = CASES[case].make(), make_scores(kind, batch, seed)
    torch.testing.assert_close(
        loss_fn.per_anchor(scores.T), loss_fn.per_anchor(scores).flip(0), rtol=1e-13, atol=1e-13
    )
    torch.testing.assert_close(loss_fn(scores.T), loss_fn(scores), rtol=1e-13, atol=1e-13)


@every_case
@shared
@given(kind=st.sampled_from(["spread", "collapsed", "trained", "large"]), batch=batches, seed=seeds)
def test_order_of_the_pairs_does_not_matter(case, kind, batch, seed):
    loss_fn, scores, ids = CASES[case].make(), make_scores(kind, batch, seed), make_ids(batch, seed)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    loss, grad = value_and_grad(loss_fn, scores, image_ids=ids)
    shuffled_loss, shuffled_grad = value_and_grad(loss_fn, scores[order][:, order], image_ids=ids[order])
    torch.testing.assert_close(shuffled_loss, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(shuffled_grad, grad[order][:, order], rtol=1e-12, atol=1e-12)


@every_case
@shared
@given(kind=st.sampled_from(["spread", "trained"]), batch=st.integers(2, 12), seed=seeds)
def test_a_constant_added_to_all_scores(case, kind, batch, seed):
    name, make, _ = CASES[case]
    scores = make_scores(kind, batch, seed)
    if LOSSES[name].shift_invariant:
        torch.testing.assert_close(make()(scores + 2.0), make()(scores), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, entry in LOSSES.items() if not entry.shift_invariant])
def test_a_loss_said_to_change_with_a_constant_does(name):
    scores = make_scores("spread", 8, 0)
    assert not torch.allclose(create_loss(name)(scores + 2.0), create_loss(name)(scores))


@pytest.mark.parametrize("case", [case for case in CASES if case not in HELD])
@pytest.mark.parametrize("kind", ["spread", "trained"])
def test_gradcheck(case, kind):
    loss_fn = CASES[case].make()
    scores = make_scores(kind, 5, seed=3).requires_grad_()
    ids = torch.tensor([4, 4, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda s: loss_fn(s, image_ids=ids), (scores,))


@every_case
@pytest.mark.parametrize("ids", [None, [5, 5, 5, 5]], ids=["one pair", "one image"])
def test_no_negatives_no_loss(case, ids):
    loss_fn = CASES[case].make()
    loss, grad = value_and_grad(loss_fn, make_scores("spread", 1 if ids is None else 4, 0), image_ids=ids)
    assert loss.item() == 0
    assert not grad.any()
    assert grad.isfinite().all()


@every_case
def test_an_anchor_without_negatives_beside_others_counts_as_zero(case):
    # Pairs 0 to 2 show one image; of the four anchors a side, all still have pair 3 or the others as negatives.
    loss_fn = CASES[case].make()
    loss, grad = value_and_grad(loss_fn, make_scores("spread", 4, 1), image_ids=torch.tensor([1, 1, 1, 2]))
    assert loss.isfinite()
    assert grad.isfinite().all()
    if case in PULLS_POSITIVES_TOGETHER:
        assert (grad[:3, 3] > 0).all()
    else:
        assert not grad[:3, :3].fill_diagonal_(0).any(), "pairs of one image are no negatives of each other"


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_are_worked_on_in_float32(case, dtype):
    loss_fn = CASES[case].make()
    scores = make_scores("collapsed", 9, 2, dtype=dtype)
    loss, grad = value_and_grad(loss_fn, scores)
    expected, expected_grad = value_and_grad(loss_fn, scores.float())
    assert loss.dtype == torch.float32
    assert grad.dtype == dtype
    assert loss == expected
    torch.testing.assert_close(grad, expected_grad.to(dtype), rtol=0, atol=0)


@every_case
def test_leading_axes_are_matrices_of_the_same_pairs(case):
    loss_fn = CASES[case].make()
    scores = torch.stack([make_scores(kind, 7, 5) for kind in ("spread", "trained", "collapsed")]).reshape(
        3, 1, 7, 7
    )
    ids = make_ids(7, 1)
    each = torch.stack([loss_fn.per_anchor(matrix[0], image_ids=ids) for matrix in scores])[:, None]
    torch.testing.assert_close(loss_fn.per_anchor(scores, image_ids=ids), each, rtol=1e-13, atol=1e-13)
    if loss_fn.reduction == "sum":
        torch.testing.assert_close(loss_fn(scores, ids), each.sum(), rtol=1e-14, atol=1e-14)


@every_case
@shared
@given(batch=st.integers(2, 200), level=st.floats(-1, 1))
def test_the_plateau_is_the_loss_of_equal_scores(case, batch, level):
    name, make, _ = CASES[case]
    loss_fn = make()
    plateau = loss_fn.plateau(batch)
    if plateau is None:
        assert not LOSSES[name].shift_invariant or name == "ncr", (
            "it depends on what the scores are, or on labels"
        )
    elif case == "shn":
        # No negative is strictly below there; but as soon as some are, however little, the anchors sit at the margin.
        nearly = level + 1e-9 * make_scores("spread", batch, 0)
        sitting = loss_fn.per_anchor(nearly)
        torch.testing.assert_close(sitting[sitting > 0], torch.full_like(sitting[sitting > 0], plateau))
        assert (sitting > 0).any()
    else:
        equal = torch.full((batch, batch), level, dtype=torch.float64)
        offline = OfflineScores(equal[:2], equal[:2]) if name == "aoq" else None
        sitting = loss_fn.per_anchor(equal, given=offline)
        torch.testing.assert_close(sitting, torch.full_like(sitting, plateau))


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_agree(name):
    scores, ids = make_scores("trained", 8, 0), make_ids(8, 0)
    each = create_loss(name, reduction="none")(scores, ids)
    assert each.shape == (2, 8)
    torch.testing.assert_close(create_loss(name, reduction="sum")(scores, ids), each.sum())
    torch.testing.assert_close(create_loss(name, reduction="mean")(scores, ids), each.sum() / 16)
    torch.testing.assert_close(create_loss(name)(scores, ids), each.mean())


@every_case
@pytest.mark.parametrize("learn", [False, True])
def test_one_pass_gives_the_loss_its_mean_and_what_a_probe_wants(case, learn):
    loss_fn, scores, ids = CASES[case].make(), make_scores("trained", 8, 0), make_ids(8, 0)
    if learn and isinstance(loss_fn, InfoNCE | SigLIP | MultiPositiveInfoNCE):
        loss_fn = type(loss_fn)(learn=True)
    anchors = loss_fn.statistics(scores, ids, also=("hardest",))
    assert torch.equal(loss_fn.reduce(anchors), loss_fn(scores, ids))
    assert torch.equal(loss_fn.reduce(anchors, "none"), loss_fn.per_anchor(scores, ids))
    torch.testing.assert_close(loss_fn.reduce(anchors, "mean"), loss_fn.reduce(anchors, "none").mean())
    torch.testing.assert_close(loss_fn.reduce(anchors, "sum"), loss_fn.reduce(anchors, "none").sum())
    hardest = torch.stack(
        [rows.masked_fill(ids[:, None] == ids, -torch.inf).amax(1) for rows in (scores, scores.T)]
    )
    assert torch.equal(anchors.raw["hardest"], hardest)
    assert torch.equal(anchors.raw.positive[0], scores.diagonal())


@every_case
@pytest.mark.parametrize("place", [(2, 2), (0, 3)], ids=["positive", "negative"])
def test_nan_is_refused_on_the_cpu_and_shows_where_it_cannot_be_refused(case, place, monkeypatch):
    loss_fn, scores = CASES[case].make(), make_scores("trained", 5, 0)
    scores[place] = math.nan
    with pytest.raises(SelhnError, match=rf"NaN or infinite value, first at \[{place[0]}, {place[1]}\]"):
        loss_fn(scores)
    monkeypatch.setattr("selhn.losses.checks.check_finite", lambda name, value: None)
    if case != "sct-nca":  # its sets are defined by comparisons that a NaN fails
        assert loss_fn(scores).isnan()
        images = torch.eye(5, dtype=torch.float64)
        assert loss_fn.from_embeddings(images, torch.where(scores.isnan(), math.nan, images)).isnan()


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            torch.zeros(3, 4),
            r"must be square.*\(3, 4\).*from_embeddings\(image_emb, text_emb\).*pass image_ids",
        ),
        (torch.zeros(5), r"must be square.*\(5,\)"),
        (torch.zeros(0, 0), "are empty"),
        (torch.zeros(3, 3, dtype=torch.int64), r"floating-point.*int64.*scores\.float\(\)"),
        ([[0.0]], r"must be a torch tensor, got list: use torch\.as_tensor"),
        (torch.full((2, 2), torch.inf), "NaN or infinite"),
    ],
    ids=["not square", "vector", "empty", "integers", "list", "infinite"],
)
def test_bad_scores(scores, message):
    with pytest.raises(SelhnError, match=message):
        TripletSelHN()(scores)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(3), "must be integers, got torch.float32"),
        ([True, False, True, False], "must be integers, got torch.bool"),
        ([1, 2, 3], r"shape \(4,\), one image per pair, got \(3,\)"),
        (["a.jpg", "b.jpg", "c.jpg", "d.jpg"], "must be integers, one per pair .* number the images"),
    ],
)
def test_bad_image_ids(ids, message):
    with pytest.raises(SelhnError, match=message):
        create_loss("selhn")(torch.zeros(4, 4), image_ids=ids)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("hn", {"margin": -0.1}, "margin must be a number >= 0, got -0.1"),
        ("hn", {"margin": "0.2"}, "margin of hn takes a number, got '0.2'"),
        ("triplet", {"reduction": "avg"}, "takes one of 'mean', 'sum', 'none', got 'avg'"),
        ("selhn", {"epsilon": math.nan}, "epsilon must be a number"),
        ("selhn", {"average_over": "all"}, "takes one of 'negatives', 'batch'"),
        ("hn", {"variant": "softmax"}, "takes one of 'hinge', 'nca'"),
        ("sct", {"temperature": 0}, "temperature must be a number > 0, got 0"),
        ("infonce", {"temperature": -0.07}, "temperature must be a number > 0, got -0.07"),
        ("infonce", {"margin": 0.2}, "infonce has no setting 'margin'"),
        ("siglip", {"bias": math.nan}, "bias must be a number, got nan"),
        ("warmup", {"warmup_epochs": -1}, "warmup_epochs must be a number >= 0, got -1"),
        ("multi_positive", {"temperature": 0}, "temperature must be a number > 0, got 0"),
        ("tal", {"temperature": -1}, "temperature must be a number > 0, got -1"),
        ("uto", {"temperature": 0}, "temperature must be a number > 0, got 0"),
        ("distance", {"dim": 1}, "dim must be a number > 1, got 1"),
        ("distance", {"farthest": 0.4}, "farthest must be a number > 0.5, got 0.4"),
        ("distance", {"farthest": 2}, "farthest must be below 2"),
        ("ssp", {"mining": "max"}, "takes one of 'hardest', 'average', got 'max'"),
        ("ssp", {"negative": (0.1, math.nan)}, "a coefficient of negative must be a number, got nan"),
        ("ssp", {"positive": 0.5}, r"positive of ssp takes a list such as \[3, 6\], got 0.5"),
        ("ssp", {"weight": -1}, "weight must be a number >= 0, got -1"),
        ("ncr", {"softness": "cos"}, "takes one of 'linear', 'exponential', 'sin', got 'cos'"),
        ("ncr", {"margin_of": "text"}, "takes one of 'anchor', 'image', got 'text'"),
        ("ncr", {"warmup_epochs": -1}, "warmup_epochs must be a number >= 0, got -1"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(SelhnError, match=message):
        create_loss(name, **settings)


def test_a_loss_of_scores_alone_takes_nothing_else():
    assert [name for name, entry in LOSSES.items() if issubclass(entry.loss, TakesGiven)] == ["ncr", "aoq"]
    loss_fn, scores, given = TripletSelHN(), make_scores("spread", 4, 0), torch.ones(4)
    for call in (loss_fn, loss_fn.per_anchor, partial(loss_fn.from_embeddings, scores)):
        with pytest.raises(SelhnError, match="is a function of the scores alone: leave `given` out"):
            call(scores, given=given)


def test_names():
    assert list_losses() == list(LOSSES)
    assert list_losses("*hn") == ["hn", "selhn", "shn"]
    assert isinstance(create_loss("selhn", epsilon=0.5), AbstractLoss)
    with pytest.raises(NotFound, match="unknown loss 'sellhn': did you mean 'selhn'"):
        create_loss("sellhn")


class Outside(AbstractLoss):
    """A loss of another package."""

    needs = ("hardest_below",)

    def __init__(self, power=2.0, reduction="mean"):
        super().__init__(reduction=reduction)
        self.power = power

    def anchor_loss(self, anchors):
        return (anchors["hardest_below"] - anchors.positive + self.margin).relu() ** self.power


def test_a_loss_of_another_package(monkeypatch):
    monkeypatch.setitem(LOSSES, "outside", None)  # so that the row is removed in the end
    del LOSSES["outside"]
    register_loss("outside", Outside, paper="nobody", url="https://example.org")
    assert list_losses("out*") == ["outside"]
    assert "nobody https://example.org" in CliRunner().invoke(app, ["losses", "out*"]).output
    loss_fn = create_loss("outside", power=1.0)
    assert repr(loss_fn) == "Outside(reduction='mean', power=1.0)"
    scores = make_scores("trained", 8, 0)
    torch.testing.assert_close(loss_fn(scores), create_loss("shn")(scores))
    torch.testing.assert_close(loss_fn.from_embeddings(torch.eye(8).double(), scores.T), loss_fn(scores))
    with pytest.raises(SelhnError, match="already a loss called 'outside'"):
        register_loss("outside", Outside)


@pytest.mark.parametrize("name", LOSSES)
def test_docstring_has_its_sections(name):
    text = LOSSES[name].loss.__doc__
    assert all(section in text for section in ("quation", "References:", "Relations:", "Example:"))


def test_repr_shows_the_settings():
    assert repr(create_loss("selhn", epsilon=0.02)) == (
        "TripletSelHN(margin=0.2, reduction='mean', epsilon=0.02, average_over='negatives', mine_at_epsilon=False)"
    )


def test_repeatable():
    scores = make_scores("ties", 32, 0)
    for name in LOSSES:
        first, second = (value_and_grad(create_loss(name), scores) for _ in range(2))
        assert first[0] == second[0]
        assert torch.equal(first[1], second[1])


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_name_and_no_class():
    with pytest.raises(SelhnError, match='takes the name of a loss, such as "selhn", got <class'):
        create_loss(TripletSelHN)
    for name, loss in ((3, TripletSelHN), ("mine", TripletSelHN()), ("mine", "selhn")):
        with pytest.raises(SelhnError, match="takes a name and a class that makes the loss"):
            register_loss(name, loss)
    assert "mine" not in LOSSES


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", LOSSES)
def test_numbers_of_numpy_are_settings(name):
    settings = {
        key: default
        for key, default in loss_settings(create_loss(name)).items()
        if isinstance(default, int | float) and not isinstance(default, bool)
    }
    assert settings or name.startswith("bce")
    for own in (np.float64, np.float32):
        given = {key: np.int64(v) if isinstance(v, int) else own(v) for key, v in settings.items()}
        for made in (create_loss(name, **given), LOSSES[name].loss(**given)):
            for key, default in settings.items():
                assert getattr(made, key) == pytest.approx(default)
                assert type(getattr(made, key)) in (int, float)


@pytest.mark.parametrize(
    "make", [InfoNCE, SigLIP, lambda t: TAL(temperature=t), lambda t: UTO(temperature=t), TripletHN]
)
def test_infinite_scales_are_refused(make):
    with pytest.raises(SelhnError, match="finite"):
        make(math.inf)
