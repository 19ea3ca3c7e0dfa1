"""GRUs as one node of an ONNX graph, whatever the length: torch's own exporter unrolls or traces them."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError

ModelT = TypeVar("ModelT", bound=nn.Module)


@torch.library.custom_op("selhn::gru", mutates_args=())
def _gru(sequences: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """The shape of the states; an export needs only shapes, never values."""
    return sequences.new_zeros(sequences.shape[0], sequences.shape[1], u.shape[2])


_gru.register_fake(_gru._init_fn)


class ExportedGRU(nn.Module):
    """A one-layer `nn.GRU` over (B, N, e), with its weights in the layout of the ONNX operator.

    torch stacks the gates as reset, update, new; ONNX as update, reset, new, after an axis for the direction.
    """

    def __init__(self, gru: nn.GRU):
        super().__init__()
        if gru.num_layers != 1 or gru.bidirectional or not gru.batch_first or not gru.bias:
            raise SelhnError(
                f"{gru} cannot be exported: only one layer in one direction, batch first, with biases"
            )
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        gates = (gru.get_parameter(name).detach().chunk(3) for name in names)
        w, u, b, c = (torch.cat([update, reset, new]) for reset, update, new in gates)
        self.w, self.u, self.b = nn.Buffer(w[None]), nn.Buffer(u[None]), nn.Buffer(torch.cat([b, c])[None])

    def forward(self, sequences: Float[Tensor, "B N e"]) -> tuple[Float[Tensor, "B N h"], None]:
        """The states of every position; `nn.GRU` also returns the last one."""
        return torch.ops.selhn.gru(sequences, self.w, self.u, self.b), None


def with_exported_grus(model: ModelT) -> ModelT:
    """A copy of a model on the CPU with its GRUs replaced by this kind."""
    model = copy.deepcopy(model).cpu().eval()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.GRU):
                setattr(parent, name, ExportedGRU(child))
    return model


def translations() -> Mapping[Any, Callable[..., Any]]:
    """How `torch.onnx.export` writes our operator."""
    from onnxscript import opset18

    op: Any = opset18

    def gru(sequences: Any, w: Any, u: Any, b: Any) -> Any:
        steps_first = op.Transpose(sequences, perm=[1, 0, 2])
        states, _ = op.GRU(steps_first, w, u, b, hidden_size=u.shape[2], linear_before_reset=1)
        return op.Transpose(op.Squeeze(states, op.Constant(value_ints=[1])), perm=[1, 0, 2])

    return {torch.ops.selhn.gru.default: gru}
