import copy
from dataclasses import replace

import pytest
import torch
from model_cases import make_batch, make_model

from selhn.base.errors import SelhnError
from selhn.models import create_model


def full_batch(pairs=4, dtype=torch.float64):
    """Pairs whose images have all five regions, as the model wants them."""
    batch = make_batch(pairs, dtype=dtype)
    batch.region_mask.fill_(True)
    return batch


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_another_number_of_regions(name):
    model = make_model(name)
    with pytest.raises(SelhnError):
        model(make_batch(regions=6))


@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize("training", [False, True])
def test_fewer_regions_are_padded(name, training):
    model, batch = make_model(name, dropout=0.0).double().train(training), make_batch(dtype=torch.float64)
    batch.region_mask[:, 3:] = False
    few = replace(batch, regions=batch.regions[:, :3], region_mask=batch.region_mask[:, :3])
    torch.testing.assert_close(model(few).scores, copy.deepcopy(model)(batch).scores, rtol=1e-12, atol=1e-12)


def test_what_the_softmax_does_not_see_does_not_learn():
    model, batch = make_model("sgr"), full_batch(dtype=torch.float32)
    before = model(batch).scores
    for step in model.head.reasoning.steps:
        assert not step.key.bias.requires_grad
        with torch.no_grad():
            step.key.bias.normal_()
    torch.testing.assert_close(model(batch).scores, before)


def test_dropout_is_drawn_once_a_text_and_not_once_a_pair():
    model, batch = make_model("sgr").train(), full_batch(dtype=torch.float32)
    torch.manual_seed(0)
    texts = model.encode_texts(batch.tokens, batch.token_mask)
    images = model.encode_images(batch.regions, batch.region_mask)
    assert torch.equal(model.score(images, texts), model.score(images, texts))
    assert not torch.equal(model.encode_texts(batch.tokens, batch.token_mask).whole, texts.whole)


def test_logits_tell_apart_what_sigmoids_do_not():
    model, batch = make_model("saf"), full_batch(dtype=torch.float32)
    with torch.no_grad():
        model.head.last.weight.mul_(20)
        model.head.last.bias.fill_(60)
    images = model.encode_images(batch.regions, batch.region_mask)
    texts = model.encode_texts(batch.tokens, batch.token_mask)
    assert (model.score(images, texts) == 1).all()
    assert len(model.logits(images, texts).unique()) == 16


def test_number_of_parameters():
    # Linear layers 1024 -> 1024 and 1024 -> 256 as in the paper; batch norms of 36 regions and of 1024.
    model = create_model("saf", vocab_size=10)
    pool = 2 * (1024 * 1024 + 1024) + 1024 + 1
    assert sum(p.numel() for p in model.image.pool.parameters()) == pool + 2 * 36 + 2 * 1024
    assert sum(p.numel() for p in model.text.pool.parameters()) == pool
    assert sum(p.numel() for p in model.head.parameters()) == 2 * (1024 * 256 + 256) + 2 * 257 + 2
