import math

import pytest
import torch
from loss_cases import blocks_of, make_scores

from selhn.base.errors import SelhnError
from selhn.losses import InfoNCE, Learns, MultiPositiveInfoNCE, SigLIP, TripletSelHN, loss_settings
from selhn.losses.infonce import SHARPEST

SCALED = (InfoNCE, MultiPositiveInfoNCE, SigLIP)


@pytest.fixture(params=SCALED, ids=lambda loss: loss.__name__)
def kind(request):
    return request.param


def embeddings(dtype=torch.float64):
    drawn = torch.randn(2, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (part.to(dtype).requires_grad_() for part in torch.nn.functional.normalize(drawn, dim=-1))


def test_what_is_learnt_begins_as_the_constant(kind):
    scores, ids = make_scores("trained", 9, 0), [0, 1, 1, 3, 4, 5, 6, 7, 8]
    learning, fixed = kind(learn=True), kind(learn=False)
    torch.testing.assert_close(
        learning(scores, ids), fixed(scores, ids).detach(), check_dtype=False, rtol=1e-6, atol=1e-6
    )
    assert len(learning.learnt()) == len(list(learning.parameters())) == (2 if kind is SigLIP else 1)
    assert fixed.learnt() == []
    assert not isinstance(TripletSelHN(), Learns)
    assert fixed.numbers() == {}
    torch.testing.assert_close(learning.numbers()["temperature"], torch.tensor(fixed.temperature))


def test_the_present_temperature_is_shown_and_saved(kind):
    fresh, trained, again = (kind(temperature=0.07, learn=True) for _ in range(3))
    assert fresh.temperature == 0.07
    with torch.no_grad():
        for parameter in trained.learnt():
            parameter += 0.5
    assert trained.temperature == pytest.approx(0.07 * math.exp(-0.5), rel=1e-5)
    if kind is SigLIP:
        assert trained.bias == -9.5
    again.load_state_dict(trained.state_dict())
    assert repr(again) == repr(trained)
    assert repr(kind(**loss_settings(trained))) == repr(fresh)


@pytest.mark.parametrize("learn", [False, True])
def test_the_temperature_can_be_set(kind, learn):
    scores, loss = make_scores("trained", 9, 0), kind(learn=learn)
    loss.temperature = 0.5
    assert loss.temperature == 0.5
    torch.testing.assert_close(
        loss(scores).detach(), kind(temperature=0.5, learn=False)(scores), rtol=1e-6, atol=1e-6
    )


def test_gradients_of_what_is_learnt(kind):
    scores = make_scores("trained", 6, 0)
    loss = kind(learn=True).double()
    loss(scores).backward()
    for parameter in loss.learnt():
        ends = []
        for side in (1e-6, -1e-6):
            with torch.no_grad():
                parameter += side
                ends.append(float(loss(scores)))
                parameter -= side
        assert float(parameter.grad) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("height", [None, 3])
def test_from_embeddings_is_the_dense_form(kind, height):
    ids, found = [0, 1, 1, 3, 4, 5, 6, 7], []
    for dense in (True, False):
        images, texts = embeddings()
        loss = kind(learn=True).double()
        with blocks_of(height):
            value = loss(images @ texts.T, ids) if dense else loss.from_embeddings(images, texts, ids)
            value.backward()
        found.append(
            [value.detach(), images.grad, texts.grad, *(parameter.grad for parameter in loss.learnt())]
        )
    for dense, from_blocks in zip(*found, strict=True):
        torch.testing.assert_close(from_blocks, dense, rtol=1e-9, atol=1e-9)


def test_embeddings_in_half_precision(kind):
    images, texts = embeddings(torch.bfloat16)
    loss = kind(learn=True)
    value = loss.from_embeddings(images, texts)
    value.backward()
    torch.testing.assert_close(
        value.detach(), loss(images.float() @ texts.float().T).detach(), rtol=0.05, atol=0.05
    )
    assert all(parameter.grad.isfinite() for parameter in loss.learnt())


def test_it_never_becomes_sharper_than_clip(kind):
    loss = kind(learn=True)
    with torch.no_grad():
        loss.log_scale.fill_(20.0)
    assert float(loss.numbers()["temperature"]) == pytest.approx(1 / SHARPEST)
    assert loss(make_scores("trained", 6, 0)).isfinite()


def test_wrong_input_is_named_before_it_is_scaled(kind):
    missing = torch.full((3, 3), torch.nan)
    with pytest.raises(SelhnError, match="scores"):
        kind(learn=True)(missing)
    with pytest.raises(SelhnError, match="image_emb"):
        kind(learn=True).from_embeddings(missing, missing)
    with pytest.raises(SelhnError, match="temperature"):
        kind(temperature=0.0, learn=True)
