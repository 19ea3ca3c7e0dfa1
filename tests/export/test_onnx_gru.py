"""GRUs of a graph: the same weights in another order."""

import pytest
import torch
from model_cases import make_model
from torch import nn

from selhn.base.errors import SelhnError
from selhn.export.onnx_gru import ExportedGRU, translations, with_exported_grus
from selhn.ops import BiGRU


def test_weights_are_those_of_the_operator():
    """By the equations of the ONNX operator, with `linear_before_reset`."""
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True)
    exported, sequence = ExportedGRU(gru), torch.randn(1, 5, 3)
    w, u, b = exported.w[0], exported.u[0], exported.b[0]
    state = torch.zeros(4)
    for x in sequence[0]:
        given, recalled = (part.chunk(3) for part in (w @ x + b[:12], u @ state + b[12:]))
        update, reset = ((g + r).sigmoid() for g, r in zip(given[:2], recalled[:2]))
        state = (1 - update) * (given[2] + reset * recalled[2]).tanh() + update * state
    assert torch.allclose(state, gru(sequence)[0][0, -1], atol=1e-6)


@pytest.mark.parametrize("settings", [{"num_layers": 2}, {"bidirectional": True}, {"bias": False}])
def test_other_grus_are_refused(settings):
    with pytest.raises(SelhnError):
        ExportedGRU(nn.GRU(3, 4, batch_first=True, **settings))


def test_the_model_itself_stays_as_it_is():
    model = make_model("rvse")
    copy = with_exported_grus(model)
    assert sum(isinstance(module, ExportedGRU) for module in copy.modules()) == 6  # texts, and both poolings
    assert sum(isinstance(module, nn.GRU) for module in model.modules()) == 6
    assert not any(isinstance(module, nn.GRU) for module in copy.modules())


def test_shapes_of_the_operator():
    module = with_exported_grus(nn.ModuleDict({"own": BiGRU(3, 4)}))["own"]
    states, last = module.ahead(torch.zeros(2, 5, 3))
    assert states.shape == (2, 5, 4)
    assert last is None


def test_the_operator_can_be_translated():
    pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
    assert list(translations()) == [torch.ops.selhn.gru.default]
