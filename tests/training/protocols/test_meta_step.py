from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from selhn.losses import MetaSPN, TripletHN
from selhn.models import AbstractMatcher
from selhn.models.matcher import dot_scores
from selhn.training.protocols import MetaStep
from selhn.training.step import make_batches, on_device


class Smooth(AbstractMatcher):
    """A matcher of which torch can take second derivatives."""

    def __init__(self, tokenizer, width):
        super().__init__(tokenizer)
        torch.manual_seed(0)
        self.fc, self.embed = nn.Linear(width, 8), nn.Embedding(tokenizer.size, 8)

    def encode_images(self, regions, region_mask):
        return nn.functional.normalize(self.fc(regions.to(self.fc.weight)).tanh().mean(1), dim=1)

    def encode_texts(self, tokens, token_mask):
        words = self.embed(tokens.long()) * token_mask[:, :, None]
        return nn.functional.normalize(words.sum(1).tanh(), dim=1)

    def score(self, images, texts):
        return dot_scores(images, texts)


def teaching(loss):
    """A weighting network that weighs anchors differently."""
    with torch.no_grad():
        loss.network[2].weight.copy_(torch.linspace(-1, 1, loss.hidden))
    return loss


@pytest.fixture
def protocol(tiny_data, tiny_config, tiny_model):
    config = replace(tiny_config, lr=0.5, batch_size=32)
    model = Smooth(tiny_model().tokenizer, tiny_data.feature_dim)
    batches = make_batches(model, tiny_data, config, torch.device("cpu"))
    return MetaStep(model, teaching(MetaSPN(hidden=6)), tiny_data, batches, config)


def test_the_meta_gradient_is_that_of_two_derivatives(protocol, tiny_data):
    model, loss = protocol.model, protocol.loss
    batch = protocol.batches.assemble(next(protocol.batches.steps(0)))
    dev = protocol._draw_dev()
    parameters = dict(model.named_parameters())

    scores = model(batch).scores
    hinges = TripletHN().per_anchor(scores, batch.image_ids)
    step = torch.autograd.grad(
        (loss.weights(scores, batch.image_ids) * hinges).mean(), tuple(parameters.values()), create_graph=True
    )
    moved = {
        name: value - 0.5 * change for (name, value), change in zip(parameters.items(), step, strict=True)
    }
    ahead = TripletHN()(functional_call(model, moved, (dev,)).scores, dev.image_ids)
    expected = torch.autograd.grad(ahead, tuple(loss.network.parameters()))

    protocol._teach(batch, dev, 0)
    for parameter, exact in zip(loss.network.parameters(), expected, strict=True):
        scale = exact.abs().max()
        torch.testing.assert_close(parameter.grad, exact, rtol=0.02, atol=float(0.02 * scale))
    assert any(exact.any() for exact in expected)


def test_only_the_weighting_network_has_changed(tiny_data, tiny_config, tiny_model):
    model = tiny_model("rvse", word_dropout=0.4).train()  # it has batch statistics too
    batches = make_batches(model, tiny_data, tiny_config, torch.device("cpu"))
    protocol = MetaStep(model, MetaSPN(), tiny_data, batches, tiny_config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = protocol.loss.network[2].weight.clone()
    step = next(batches.steps(0))
    batch, dev, drawn = batches.assemble(step), protocol._draw_dev(), torch.get_rng_state()
    protocol._teach(batch, dev, step.seed)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.equal(protocol.loss.network[2].weight, weights)


def test_the_state_is_the_network_and_its_optimiser(protocol, tiny_data, tiny_model):
    step = next(protocol.batches.steps(0))
    batch = protocol.batches.assemble(step)
    protocol.match(step.pairs, batch)
    other = MetaStep(protocol.model, MetaSPN(hidden=6), tiny_data, protocol.batches, protocol.config)
    other.load_state_dict(protocol.state_dict())
    ours, theirs = protocol.state_dict()["state"], other.state_dict()["state"]
    assert ours
    assert ours.keys() == theirs.keys()
    assert all(
        torch.equal(ours[number][name], theirs[number][name]) for number in ours for name in ours[number]
    )


def test_other_pairs_of_dev_in_every_step(protocol):
    def drawn(seed):
        protocol.batches.generator.manual_seed(seed)
        return protocol._draw_dev().image_ids

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_nothing_is_learnt_where_dev_is_told_apart(protocol, monkeypatch):
    batch, dev = protocol.batches.assemble(next(protocol.batches.steps(0))), protocol._draw_dev()
    before = [parameter.clone() for parameter in protocol.loss.network.parameters()]
    gradients = protocol._gradients
    monkeypatch.setattr(protocol, "_gradients", lambda value: [torch.zeros_like(g) for g in gradients(value)])
    protocol._teach(batch, dev, 0)
    assert all(torch.equal(*both) for both in zip(before, protocol.loss.network.parameters()))


def test_passes_are_seeded_where_they_are_not_recorded(protocol):
    assert not protocol.capturable
    assert not protocol.capturable


@pytest.mark.gpu
@pytest.mark.parametrize(("drops", "capture"), [(0.0, "auto"), (0.4, "auto"), (0.0, "never")])
def test_it_is_recorded_unless_something_is_dropped(tiny_data, tiny_config, tiny_model, drops, capture):
    model, cuda = tiny_model("rvse", word_dropout=drops).cuda(), torch.device("cuda")
    config = replace(tiny_config, capture=capture, device="cuda", precision="float32")
    data = on_device(tiny_data, config, cuda)
    protocol = MetaStep(model, MetaSPN(), data, make_batches(model, data, config, cuda), config)
    assert protocol.capturable == (drops == 0 and capture == "auto")
