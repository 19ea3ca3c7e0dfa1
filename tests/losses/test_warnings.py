import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from selhn.base.errors import SelhnWarning
from selhn.losses import AOQ, NCR, OfflineScores, TripletHN, TripletSelHN

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
        (lambda: NCR()(SCORES), "NCR without `given` is TripletHN"),
        (lambda: AOQ().from_embeddings(UNIT, UNIT), "AOQ without `given` is TripletHN"),
    ],
)
def test_what_is_hardly_ever_meant_is_said_where_it_is_written(call, message):
    with pytest.warns(SelhnWarning, match=message) as heard:
        call()
    assert len(heard) == 1
    assert Path(heard[0].filename).name in (Path(__file__).name, "conftest.py"), (
        "not a file of selhn or torch"
    )


def test_ordinary_calls_say_nothing():
    given = OfflineScores(torch.zeros(2, 6), torch.zeros(2, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TripletSelHN()(SCORES, [0, 0, 1, 1, 2, 2])
        TripletSelHN().from_embeddings(UNIT, 1.05 * UNIT, [0, 0, 0, 0, 0, 1])
        NCR()(SCORES, given=torch.ones(6))
        NCR(warmup_epochs=1)(SCORES)
        AOQ()(SCORES, given=given)


def test_a_loop_says_it_once():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(5):
            NCR()(SCORES)
    assert len(heard) == 1


def test_values_on_an_accelerator_are_not_looked_at():
    scores, ids = torch.empty(6, 6, device="meta"), torch.zeros(6, dtype=torch.long, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TripletHN()(scores, ids)
