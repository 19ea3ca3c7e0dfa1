import torch

from selhn.losses import TripletHN
from selhn.training.protocols import Protocol
from selhn.training.step import make_batches


def test_the_ordinary_protocol_adds_nothing(tiny_model, tiny_data, tiny_config):
    model = tiny_model().eval()
    batches = make_batches(model, tiny_data, tiny_config, torch.device("cpu"))
    protocol = Protocol(model, TripletHN(), tiny_data, batches, tiny_config)
    protocol.begin_epoch(0)
    step = next(batches.steps(0))
    batch = batches.assemble(step)
    match, given = protocol.match(step.pairs, batch)
    assert torch.equal(match.scores, model(batch).scores)
    assert given is None
    assert protocol.state_dict() == {}
    assert protocol.capturable


def test_tables_are_the_state_and_are_filled_in_place(tiny_model, tiny_data, tiny_config):
    model = tiny_model()
    batches = make_batches(model, tiny_data, tiny_config, torch.device("cpu"))
    first, second = (Protocol(model, TripletHN(), tiny_data, batches, tiny_config) for _ in range(2))
    first.tables, second.tables = {"rows": torch.arange(4.0)}, {"rows": torch.zeros(4)}
    table = second.tables["rows"]
    second.load_state_dict(first.state_dict())
    assert second.tables["rows"] is table
    assert torch.equal(table, torch.arange(4.0))
