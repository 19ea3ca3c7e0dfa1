from dataclasses import replace

import pytest
import torch
from model_cases import make_batch, make_model
from model_oracle import gru_step, length_one, run_gru
from torch.nn.functional import pad

from selhn.models.captioner import Captioner


def naive_regions(model, rows):
    """The regions of one image after the graph, region by region, in evaluation."""
    axis = model.reasoning.axis
    rows = model.reasoning.fc(rows)
    if model.reasoning.first_norm:
        rows = rows / rows.norm(dim=axis - 1, keepdim=True)
    for layer in model.reasoning.layers:
        seen = [sum((layer.theta(x) @ layer.phi(y)) / len(rows) * layer.g(y) for y in rows) for x in rows]
        rows = torch.stack([x + layer.norm(layer.out(y)[None])[0] for x, y in zip(rows, seen, strict=True)])
    return rows / rows.norm(dim=axis - 1, keepdim=True)


@pytest.mark.parametrize("settings", [{}, {"final_bn": False}, {"norm_over": "features"}])
def test_scores_equal_a_loop_over_pairs(settings):
    model, batch = make_model("vsrn", **settings).double(), make_batch(3, regions=4, dtype=torch.float64)
    scores = model(batch).scores
    for i in range(3):
        regions = naive_regions(model, batch.regions[i][batch.region_mask[i]])
        image = length_one(model.final_bn(run_gru(model.region_rnn, list(regions), 16)[-1][None])[0])
        for j in range(3):
            words = [model.embed.weight[t] for t in batch.tokens[j][batch.token_mask[j]]]
            assert abs(image @ length_one(run_gru(model.rnn, words, 16)[-1]) - scores[i, j]) < 1e-6


def naive_captioning(captioner, regions, tokens):
    """The cost of one text, word by word, from the equations."""
    encoded = torch.stack(
        run_gru(captioner.encoder, list(captioner.project(regions)), captioner.cell.hidden_size)
    )
    state, cost = encoded[-1], 0.0
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell = type("Cell", (), {f"{name}_l0": getattr(captioner.cell, name) for name in names})
    for word, following in zip(tokens, [*tokens[1:], 0], strict=True):
        looks = torch.stack(
            [captioner.weigh((captioner.look_at(e) + captioner.look_from(state)).tanh()) for e in encoded]
        )
        seen = (looks.exp() / looks.exp().sum() * encoded).sum(0)
        state = gru_step(cell, torch.cat([captioner.embed.weight[word], seen]), state)
        cost = cost - captioner.out(state).log_softmax(0)[following]
    return cost


@pytest.mark.parametrize("ragged", [True, False])
def test_the_captioner_is_its_formula(ragged, monkeypatch):
    monkeypatch.setattr("selhn.models.captioner.is_ragged", lambda tensor: ragged)
    torch.manual_seed(0)
    captioner = Captioner(7, 6, 40, 5, dropout=0.0).double()
    batch = make_batch(4, dtype=torch.float64)
    regions = torch.randn(4, 5, 7, dtype=torch.float64)
    loss = captioner(regions, batch.region_mask, batch.tokens, batch.token_mask)
    rows = zip(regions, batch.region_mask, batch.tokens, batch.token_mask, strict=True)
    expected = sum(naive_captioning(captioner, r[m], t[n].tolist()) for r, m, t, n in rows) / 4
    torch.testing.assert_close(loss, expected)
    tokens, token_mask = pad(batch.tokens, (0, 2), value=9), pad(batch.token_mask, (0, 2))
    torch.testing.assert_close(captioner(regions, batch.region_mask, tokens, token_mask), loss)
    parameters = list(captioner.parameters())
    for ours, theirs in zip(
        *(torch.autograd.grad(value, parameters) for value in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_captions_are_said_in_training_only():
    model, batch = make_model("vsrn"), make_batch()
    assert model(batch).aux == {}
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    match = model.train()(batch)
    assert set(match.aux) == {"captioning"}
    match.aux["captioning"].backward()
    assert model.reasoning.fc.weight.grad.any(), "it teaches the image encoder"
    assert model.rnn.weight_ih_l0.grad is None, "but not the text encoder"
    weighed = make_model("vsrn", captioning=0.5).train()
    weighed.load_state_dict(model.state_dict())
    weighed.captioner.dropout.p = 0.0
    torch.testing.assert_close(weighed(batch).aux["captioning"], match.aux["captioning"] / 2)


def test_without_a_captioner():
    model = make_model("vsrn", captioning=0.0).train()
    assert model.captioner is None
    assert model(make_batch()).aux == {}


def test_statistics_of_a_batch_leave_out_padding():
    model, batch = make_model("vsrn").train(), make_batch()
    twin = make_model("vsrn").train()
    changed = replace(batch, regions=batch.regions.masked_fill(~batch.region_mask[:, :, None], 50.0))
    torch.testing.assert_close(model(batch).scores, twin(changed).scores)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[name], value)
