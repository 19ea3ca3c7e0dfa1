import math

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.losses import AOQ, NCR, MetaSPN, TripletHN
from selhn.models import create_model
from selhn.text import Vocabulary
from selhn.training.average import WeightAverage
from selhn.training.config import TrainConfig, with_values
from selhn.training.protocols import SelfDistillation, protocol_of
from selhn.training.protocols.self_distillation import divergence
from selhn.training.step import make_batches


def brute_force(teacher, scores, temperature):
    """The definition, number by number."""
    size, total = len(scores), 0.0
    for a, s in ((teacher, scores), (list(zip(*teacher)), list(zip(*scores)))):
        for row_a, row_s in zip(a, s):
            p, q = ([math.exp(x / temperature) for x in row] for row in (row_a, row_s))
            p, q = ([x / sum(row) for x in row] for row in (p, q))
            total += sum(x * math.log(x / y) for x, y in zip(p, q))
    return total / (2 * size)


@pytest.mark.parametrize("temperature", [0.05, 0.3])
def test_the_divergence_is_its_definition(temperature):
    teacher, scores = torch.rand(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = divergence(teacher, scores, temperature)
    assert float(ours) == pytest.approx(
        brute_force(teacher.tolist(), scores.tolist(), temperature), rel=1e-10
    )
    assert float(divergence(scores, scores, temperature)) == 0
    of_two = divergence(torch.stack([teacher, scores]), torch.stack([scores, scores]), temperature)
    assert float(of_two) == pytest.approx(float(ours) / 2), "two networks: the mean over both"


def make(model, data, average=True, loss=None, **settings):
    config = with_values(TrainConfig(batch_size=32, device="cpu", ema=0.9, distil=0.5), settings)
    batches = make_batches(model, data, config, torch.device("cpu"))
    followed = WeightAverage(model, 0.9) if average else None
    return SelfDistillation(model, loss or TripletHN(), data, batches, config, followed)


def test_the_teacher_is_the_average_and_has_no_gradient(tiny_model, tiny_data):
    model = tiny_model()
    protocol = make(model, tiny_data, distil_temperature=0.1)
    with torch.no_grad():
        model.image.fc.weight.mul_(-1)
    step = next(protocol.batches.steps(0))
    batch = protocol.batches.assemble(step)
    before = {name: tensor.clone() for name, tensor in protocol.average.model.state_dict().items()}
    match, given = protocol.match(step.pairs, batch)
    assert given is None
    taught = match.aux["distillation"]
    teacher = protocol.average.model(batch).scores
    expected = brute_force(teacher.tolist(), match.scores.tolist(), 0.1)
    assert float(taught.detach()) == pytest.approx(0.5 * 0.1 * expected, rel=1e-3)
    taught.backward()
    assert model.image.fc.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in protocol.average.model.parameters())
    assert all(torch.equal(before[name], now) for name, now in protocol.average.model.state_dict().items())
    assert protocol.state_dict() == {}


def test_what_it_cannot_be_combined_with(tiny_model, tiny_data):
    with pytest.raises(SelhnError, match="ema"):
        make(tiny_model(), tiny_data, average=False)
    with pytest.raises(SelhnError, match="two_pass"):
        make(tiny_model(), tiny_data, two_pass=True)
    with pytest.raises(SelhnError, match="distil_temperature"):
        make(tiny_model(), tiny_data, distil_temperature=0)
    for loss in (NCR, AOQ, MetaSPN):
        with pytest.raises(SelhnError):
            protocol_of(loss, 1.0)
        assert protocol_of(loss) is not SelfDistillation
    assert protocol_of(TripletHN, 0.5) is SelfDistillation


def test_it_teaches_two_networks_too(tiny_data, tiny_model):
    model = tiny_model(networks=2)
    assert type(model) is type(
        create_model("rvse", vocab_size=9, feature_dim=4, dim=4, word_dim=3, networks=2)
    )
    protocol = make(model, tiny_data)
    step = next(protocol.batches.steps(0))
    match, _ = protocol.match(step.pairs, protocol.batches.assemble(step))
    assert match.scores.shape == (2, 32, 32)
    assert match.aux["distillation"].ndim == 0


@pytest.mark.parametrize("networks", [1, 2])
def test_a_model_with_several_matrices_is_taught_all_of_them(tiny_data, networks):
    words = Vocabulary.build(tiny_data.train.captions)
    sizes = {"feature_dim": tiny_data.feature_dim, "dim": 8, "word_dim": 6}
    model = create_model("cvse", tokenizer=words, networks=networks, **sizes)
    protocol = make(model, tiny_data, distil=1.0, distil_temperature=1.0)
    step = next(protocol.batches.steps(0))
    batch = protocol.batches.assemble(step)
    match, _ = protocol.match(step.pairs, batch)
    teacher = protocol.average.model(batch).scores.view(networks, 32, 32)
    every = match.scores.view(networks, -1, 32, 32)
    one_by_one = [divergence(a, s, 1.0) for a, own in zip(teacher, every) for s in own]
    torch.testing.assert_close(match.aux["distillation"], torch.stack(one_by_one).mean())
