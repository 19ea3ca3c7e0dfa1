import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from selhn.base.errors import SelhnError, SelhnWarning
from selhn.losses import (
    AOQ,
    BCE,
    NCR,
    BCEMax,
    InfoNCE,
    OfflineScores,
    SigLIP,
    TripletDistance,
    TripletHN,
    TripletSelHN,
    checks,
)

SCORES = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
UNIT = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), dim=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TripletSelHN()(SCORES[:1, :1]), "no negatives"),
        (lambda: TripletSelHN()(SCORES, [3] * 6), "no negatives"),
        (
            lambda: TripletSelHN().from_embeddings(UNIT, UNIT, torch.zeros(6, dtype=torch.long)),
            "no negatives",
        ),
        (lambda: TripletSelHN().from_embeddings(UNIT, 3 * UNIT), "rows of text_emb have a mean length of 3"),
        (
            lambda: TripletSelHN().from_embeddings(UNIT / 2, UNIT),
            "rows of image_emb have a mean length of 0.5",
        ),
        (lambda: TripletSelHN()(100 * SCORES), "beyond 1.5: .* Divide them by"),
        (lambda: TripletSelHN()(SCORES - 2.0), "beyond 1.5"),
        (lambda: TripletSelHN().mined(14.3 * SCORES), "beyond 1.5"),
        (lambda: TripletSelHN()(14.3 * SCORES.bfloat16()), "beyond 1.5"),
        (lambda: BCE()(SCORES), "probabilities"),
        (lambda: BCEMax()(SCORES), "probabilities"),
        (lambda: BCE()(2 * SCORES.abs()), "probabilities"),
        (lambda: BCE().from_embeddings(UNIT, UNIT), "probabilities"),
        (lambda: TripletDistance()(2 * SCORES), "cosines"),
        (lambda: TripletDistance()(SCORES - 1), "cosines"),
        (lambda: TripletHN()(normalize(torch.randn(16, 16), dim=1)), "rows .* length 1.* from_embeddings"),
        (lambda: NCR(warmup_epochs=0)(SCORES), "NCR without `given`"),
        (lambda: NCR()(SCORES, given=torch.ones(6)), "does not look at labels while it warms up"),
        (lambda: AOQ().from_embeddings(UNIT, UNIT), "AOQ without `given`"),
    ],
)
def test_what_is_hardly_ever_meant_is_said_where_it_is_written(call, message):
    with pytest.warns(SelhnWarning, match=message) as heard:
        call()
    assert len(heard) == 1
    assert Path(heard[0].filename).name in (Path(__file__).name, "conftest.py"), (
        "not a file of selhn or torch"
    )


@pytest.mark.usefixtures("as_a_user")
def test_two_embeddings_are_not_scores_and_ids():
    with pytest.raises(SelhnError, match="from_embeddings"):
        TripletSelHN()(SCORES, SCORES)


def test_ordinary_calls_say_nothing():
    given = OfflineScores(torch.zeros(2, 6), torch.zeros(2, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TripletSelHN()(SCORES, [0, 0, 1, 1, 2, 2])
        TripletSelHN().from_embeddings(UNIT, 1.05 * UNIT, [0, 0, 0, 0, 0, 1])
        TripletSelHN()(1.4 * SCORES)
        BCE()(SCORES.sigmoid())
        BCEMax()(torch.eye(16))
        TripletDistance()(1.001 * SCORES)
        TripletHN()(100 * SCORES)
        InfoNCE(temperature=1.0)(100 * SCORES)
        SigLIP()(100 * SCORES)
        TripletHN()(torch.eye(16))
        NCR(warmup_epochs=0)(SCORES, given=torch.ones(6))
        NCR(warmup_epochs=1)(SCORES)
        AOQ()(SCORES, given=given)


@pytest.mark.parametrize(
    "step",
    [
        lambda loss, n: NCR(warmup_epochs=0)(SCORES),
        lambda loss, n: loss((14 + n) * SCORES),
        lambda loss, n: TripletSelHN()((14 + n) * SCORES),
        lambda loss, n: loss.from_embeddings(UNIT, (3 + n) * UNIT),
    ],
)
def test_a_loop_says_it_once(step):
    loss = TripletSelHN()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for number in range(5):
            step(loss, number)
    assert len(heard) == 1


def test_scores_that_leave_the_range_later_are_noticed():
    """Only where the formula needs the range: models whose scores grow to 2, such as BFAN, train well with SelHN."""
    noticed = []
    for loss in (TripletDistance(), TripletSelHN()):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for number in range(40):
                loss(0.5 * SCORES if number < 20 else 2 * SCORES)
        noticed.append(len(heard))
    assert noticed == [1, 0]


def test_a_trained_loss_reads_few_values_back(monkeypatch):
    """Reading makes a GPU wait."""
    looks = []
    monkeypatch.setattr(checks, "odd_scores", lambda *args: looks.append(1))
    losses = TripletDistance(), TripletSelHN(), TripletHN()
    for loss in losses:
        for _ in range(1000):
            loss(SCORES)
    assert len(looks) < 50


def test_values_on_an_accelerator_are_not_looked_at():
    scores, ids = torch.empty(6, 6, device="meta"), torch.zeros(6, dtype=torch.long, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TripletHN()(scores, ids)
        TripletSelHN()(scores, ids)
