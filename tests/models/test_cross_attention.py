import math
from dataclasses import fields

import pytest
import torch
from model_cases import CASES, make_batch, make_model, score_batch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from selhn.models import MODELS, create_model
from selhn.types import Batch

NAMES = [name for name, entry in MODELS.items() if entry.family == "cross-attention"]


@pytest.mark.parametrize("name", NAMES)
def test_encodings_are_unit_vectors_with_zeros_for_padding(name):
    model, batch = make_model(name), make_batch()
    images = model.encode_images(batch.regions, batch.region_mask)
    texts = model.encode_texts(batch.tokens, batch.token_mask)
    for encoded, mask in ((images, batch.region_mask), (texts, batch.token_mask)):
        assert torch.equal(encoded.mask, mask)
        torch.testing.assert_close(encoded.vectors.norm(dim=2), mask.float())


@pytest.mark.parametrize("name", NAMES)
def test_a_small_byte_budget_changes_nothing(name, monkeypatch):
    batch, model = make_batch(), make_model(name, **({"dropout": 0.0} if name in ("sgr", "saf") else {})).train()
    weights = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def run():
        model.load_state_dict(state)
        model.zero_grad()
        scores = model(batch).scores
        (scores * weights).sum().backward()
        grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        return scores.detach(), grads, {key: value.clone() for key, value in model.state_dict().items()}

    scores, grads, after = run()
    with torch.no_grad():
        whole = score_batch(model.eval(), batch)
    model.train()
    monkeypatch.setattr("selhn.layers.fragments.CPU_BYTE_BUDGET", 30_000)
    in_blocks, block_grads, after_blocks = run()
    torch.testing.assert_close(in_blocks, scores, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(block_grads, grads, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(after_blocks, after, rtol=1e-5, atol=1e-6, msg="running statistics")
    with torch.no_grad():
        torch.testing.assert_close(score_batch(model.eval(), batch), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_do_not_depend_on_values(name):
    # A fake tensor has no values: whatever asks for one, or for a shape that depends on one, raises.
    batch = make_batch()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = create_model(name, **CASES[name]).train()
        fake = Batch(*(torch.empty_like(getattr(batch, field.name)) for field in fields(Batch)))
        with pytest.raises(DataDependentOutputException):
            fake.token_mask.sum().item()
        model(fake).scores.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_starting_values():
    model = create_model("scan_t2i_avg", vocab_size=500, feature_dim=64, dim=32, word_dim=16)
    assert not model.image.fc.bias.any()
    assert model.image.fc.weight.abs().max() <= math.sqrt(6 / (64 + 32))
    assert 0.09 < model.text.words.embed.weight.abs().max() <= 0.1


@pytest.mark.parametrize("name", NAMES)
def test_ranking_is_by_the_numbers_before_a_sigmoid(name):
    model, batch = make_model(name), make_batch()
    images = model.encode_images(batch.regions, batch.region_mask)
    texts = model.encode_texts(batch.tokens, batch.token_mask)
    numbers, scores = model.rank_scores(images, texts), model.score(images, texts)
    assert torch.equal(scores, numbers.sigmoid() if name in ("sgr", "saf") else numbers)
