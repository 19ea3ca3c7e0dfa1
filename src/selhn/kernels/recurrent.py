"""Several GRUs of one shape over padded sequences at once, in half precision on a GPU.

A step of a GRU is a small matrix product and a few functions of its result, and the steps wait for each
other. cuDNN takes the two directions of a text one after the other, and in float16, where small gradients
vanish. Here a step of all directions is one batched product and one kernel; states and sums are float32,
products bfloat16.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from selhn.kernels.gpu import fusable, wide_product


def can_scan(sequences: Float[Tensor, "*K e"]) -> bool:
    """Whether `gru_scan` is the way to go: on a GPU, where half precision is wanted."""
    return fusable(sequences) and torch.is_autocast_enabled("cuda")


def gru_scan(sequences: Float[Tensor, "D N B e"], grus: tuple[nn.GRU, ...]) -> Float[Tensor, "D N B h"]:
    """The states of D one-layer GRUs, each over its own B sequences of N steps, beginning with zeros.

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), sigmoid(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r * (U_n h + c_n)),   h <- (1 - z) n + z h
    """
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    stacked = [torch.stack([getattr(gru, name) for gru in grus]) for name in names]
    with torch.autocast("cuda", enabled=False):
        return _FusedScan.apply(sequences, *stacked)


class _FusedScan(torch.autograd.Function):
    """(sequences, W, U, b, c) -> states, where W is (D, 3h, e) and so on."""

    @staticmethod
    def forward(ctx: Any, sequences: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        from selhn.kernels import recurrent_triton

        directions, steps, batch, _ = sequences.shape
        hidden = u.shape[2]
        padded, w = _padded(sequences), _padded(w)
        u = u.to(torch.bfloat16)
        # What is added before the sigmoids can be added to the input's part once for all steps.
        bias = torch.cat([b[:, : 2 * hidden] + c[:, : 2 * hidden], b[:, 2 * hidden :]], dim=1)
        from_input = torch.baddbmm(bias.to(torch.bfloat16)[:, None], padded.flatten(1, 2), w.mT)
        from_input = from_input.unflatten(1, (steps, batch))
        states = from_input.new_empty(directions, steps, batch, hidden)
        gates = from_input.new_empty(directions, steps, 4, batch, hidden)
        state = from_input.new_zeros(directions, batch, hidden, dtype=torch.float32)
        bias_n = c[:, 2 * hidden :].float().contiguous()
        for step in range(steps):
            recalled = wide_product(states[:, step - 1], u.mT) if step else None
            recurrent_triton.forward_step(from_input, recalled, bias_n, state, states, gates, step)
        ctx.save_for_backward(padded, w, u, states, gates)
        ctx.width = sequences.shape[3]
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        from selhn.kernels import recurrent_triton

        padded, w, u, states, gates = ctx.saved_tensors
        directions, steps, batch, hidden = states.shape
        grad = grad.contiguous()
        # Gradients before the sigmoids and the tanh: of the input's part, and of the state's.
        grad_input, grad_recalled = (states.new_empty(directions, steps, batch, 3 * hidden) for _ in range(2))
        carried = torch.zeros(directions, batch, hidden, device=grad.device)
        from_next = None
        for step in reversed(range(steps)):
            recurrent_triton.backward_step(grad, from_next, carried, gates, states, grad_input, grad_recalled, step)
            if step:
                from_next = wide_product(grad_recalled[:, step], u)
        flat = grad_input.flatten(1, 2)
        grad_sequences = torch.bmm(flat, w)[:, :, : ctx.width].unflatten(1, (steps, batch))
        grad_w = wide_product(flat.mT, padded.flatten(1, 2))[:, :, : ctx.width]
        grad_u = wide_product(grad_recalled[:, 1:].flatten(1, 2).mT, states[:, :-1].flatten(1, 2))
        grad_b = flat.sum(dim=1, dtype=torch.float32)
        grad_c_n = grad_recalled[..., 2 * hidden :].sum(dim=(1, 2), dtype=torch.float32)
        return grad_sequences, grad_w, grad_u, grad_b, torch.cat([grad_b[:, : 2 * hidden], grad_c_n], dim=1)


def _padded(matrix: Float[Tensor, "*K e"]) -> Float[Tensor, "*K f"]:
    """In bfloat16, with zeros up to a width that matrix units read at full speed."""
    return nn.functional.pad(matrix.to(torch.bfloat16), (0, -matrix.shape[-1] % 8))
