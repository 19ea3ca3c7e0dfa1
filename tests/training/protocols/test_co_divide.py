from dataclasses import replace

import pytest
import torch

from selhn.data import with_noise
from selhn.losses import NCR
from selhn.models import create_model
from selhn.text import Vocabulary
from selhn.training.loop import train
from selhn.training.protocols import CoDivide
from selhn.training.protocols.co_divide import above_threshold, clean_probability
from selhn.training.step import make_batches


@pytest.fixture
def make_protocol(tiny_data, tiny_config):
    def make(loss, networks=2, data=tiny_data, dim=16, name="vse_fc", **settings):
        torch.manual_seed(0)
        model = create_model(
            name,
            networks=networks,
            tokenizer=Vocabulary.build(data.train.captions),
            feature_dim=data.feature_dim,
            dim=dim,
            word_dim=12,
        )
        config = replace(tiny_config, **settings)
        batches = make_batches(model, data, config, torch.device("cpu"))
        return CoDivide(model, loss, data, batches, config)

    return make


def test_every_pair_is_surveyed_once_by_each_network_in_full_batches(make_protocol, tiny_data):
    protocol = make_protocol(NCR(warmup_epochs=0))
    losses, predictions = protocol.survey(3)
    assert losses.shape == predictions.shape == (2, 500)
    assert not torch.equal(losses[0], losses[1])
    assert (losses > 0).all()
    assert ((predictions >= 0) & (predictions <= 1)).all()
    rows = protocol.batches.order(3)
    model, plain = protocol.model.eval(), protocol._plain
    for texts in (rows[:64], rows[-64:]):  # the last batch reaches back: 500 pairs are no multiple of 64
        batch = plain.assemble_rows(texts)
        with torch.no_grad():
            for network, of_one in zip(model.both, losses, strict=True):
                expected = NCR(warmup_epochs=0).pair_losses(network(batch).scores, batch.image_ids)
                torch.testing.assert_close(of_one[texts], expected)


def test_nothing_is_divided_while_warming_up(make_protocol):
    protocol = make_protocol(NCR(warmup_epochs=1))
    protocol.begin_epoch(0)
    assert protocol.tables["labels"].eq(1).all()
    protocol.loss.set_epoch(1)
    protocol.begin_epoch(1)
    assert not protocol.tables["labels"].eq(1).all()


def test_labels_by_hand(make_protocol, monkeypatch):
    protocol = make_protocol(NCR(warmup_epochs=0), epochs=4)
    losses = torch.zeros(2, 500)
    losses[0, 250:] = 1.0  # the first network finds the second half wrong,
    losses[1, 400:] = 1.0  # the second the last fifth
    predictions = torch.stack([torch.full((500,), 0.2), torch.full((500,), 0.6)])
    monkeypatch.setattr(protocol, "survey", lambda epoch: (losses, predictions))
    protocol.begin_epoch(1)
    labels, trained = protocol.tables["labels"], protocol.tables["trained"]
    for own, wrong_from in ((0, 400), (1, 250)):  # each learns what the other found
        assert trained[own, :wrong_from].all()
        assert not trained[own, wrong_from:].any()
        torch.testing.assert_close(labels[own, :wrong_from], torch.ones(wrong_from))
        torch.testing.assert_close(labels[own, wrong_from:], torch.full((500 - wrong_from,), 0.4))
    protocol.begin_epoch(2)
    assert trained.all(), "from the middle of the run on, all pairs are trained on"


def test_a_network_alone_is_its_own_other(make_protocol, monkeypatch):
    protocol = make_protocol(NCR(warmup_epochs=0), networks=1)
    losses = (torch.arange(500) >= 300).float()[None]
    monkeypatch.setattr(protocol, "survey", lambda epoch: (losses, torch.zeros(1, 500)))
    protocol.begin_epoch(0)
    assert torch.equal(protocol.tables["trained"], losses == 0)


def test_a_step_gathers_the_labels_of_its_pairs(make_protocol):
    protocol = make_protocol(NCR(warmup_epochs=0))
    protocol.tables["labels"].copy_(torch.rand(2, 500))
    step = next(protocol.batches.steps(0))
    batch = protocol.batches.assemble(step)
    match, given = protocol.match(step.pairs, batch)
    assert match.scores.shape == (2, 64, 64)
    assert torch.equal(given.labels, protocol.tables["labels"][:, step.pairs.texts])
    assert given.trained.all()


@pytest.mark.parametrize("networks", [1, 2])
def test_every_matrix_of_a_network_has_its_labels(make_protocol, networks):
    """CVSE trains on several matrices of scores; both networks once had the labels of the first."""
    protocol = make_protocol(NCR(warmup_epochs=0), networks, name="cvse")
    protocol.tables["labels"].copy_(torch.rand_like(protocol.tables["labels"]))
    step = next(protocol.batches.steps(0))
    match, given = protocol.match(step.pairs, protocol.batches.assemble(step))
    own = match.scores if networks == 2 else match.scores[None]
    losses = protocol.loss.per_anchor(match.scores, given=given).view(networks, -1, 2, own.shape[-1])
    for network in range(networks):
        labels = protocol.tables["labels"][network, step.pairs.texts]
        for scores, found in zip(own[network], losses[network], strict=True):
            torch.testing.assert_close(found, protocol.loss.per_anchor(scores, given=labels))


def test_probability_and_threshold():
    losses = torch.cat([torch.full((60,), 0.3), torch.full((40,), 0.9)])
    probability = clean_probability(losses)
    assert (probability[:60] > 0.99).all()
    assert (probability[60:] < 0.01).all()
    assert torch.equal(above_threshold(probability), losses < 0.5)
    assert clean_probability(torch.full((9,), 0.2)).eq(1).all(), "equal losses tell nothing"
    assert above_threshold(torch.ones(9)).all()
    high = torch.linspace(0.6, 1.0, 200)
    assert (~above_threshold(high)).nonzero().flatten().tolist() == [0, 1], "the least probable hundredth"


def test_injected_noise_is_told_from_true_pairs(make_protocol, tiny_data):
    noisy = with_noise(tiny_data, 0.3, seed=0)
    protocol = make_protocol(NCR(warmup_epochs=0), data=noisy, dim=32)
    warm = NCR(warmup_epochs=6)
    train(protocol.model, noisy, warm, epochs=6, lr=5e-3, batch_size=64, device="cpu", quiet=True)
    protocol.begin_epoch(0)
    true = noisy.train.image_of_text == tiny_data.train.image_of_text
    for labels in protocol.tables["labels"]:
        difference = labels[true][:, None] - labels[~true]
        above = (difference > 0).double().mean() + (difference == 0).double().mean() / 2
        # By chance a true pair has the higher label in half of all cases, with this deviation (Mann and Whitney).
        deviation = (501 / (12 * int(true.sum()) * int((~true).sum()))) ** 0.5
        assert above > 0.5 + 5 * deviation
    trained = protocol.tables["trained"].double()
    assert trained[:, ~true].mean() < trained[:, true].mean() - 0.1
