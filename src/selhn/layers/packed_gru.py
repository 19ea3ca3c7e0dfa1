"""A GRU over sequences of unlike length on a CPU: no step is computed for padding.

Sequences stand in the order of their lengths, the longest first, step after step: the rows of step n are
those of the sequences that have one, and continue the first rows of step n - 1. What does not wait for the
step before is one matrix product over all rows, in the backward pass too, where torch would add up a gradient
of the weights for every step.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def packed_order(lengths: Int[Tensor, " B"], size: int) -> tuple[Int[Tensor, " W"], Int[Tensor, " W"], list[int]]:
    """Positions of W rows in padded sequences (B * size), read ahead and backwards, and how many each step has."""
    order = lengths.argsort(descending=True, stable=True)
    present = torch.arange(size)[:, None] < lengths[order]
    step, place = present.nonzero(as_tuple=True)
    item = order[place]
    return item * size + step, item * size + lengths[item] - 1 - step, present.sum(1).tolist()


def packed_gru(gru: nn.GRU, rows: Float[Tensor, "W e"], rows_of_step: list[int]) -> Float[Tensor, "W h"]:
    """The states of one layer of `gru`, beginning with zeros.

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), sigmoid(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r * (U_n h + c_n)),   h <- (1 - z) n + z h
    """
    weights = (gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
    return _PackedScan.apply(rows, *weights, _steps(rows_of_step))


def _steps(rows_of_step: list[int]) -> list[tuple[slice, slice]]:
    """For every step its rows, and the rows of the step before that they continue."""
    steps, first, before = [], 0, 0
    for count in rows_of_step:
        steps.append((slice(first, first + count), slice(before, before + count)))
        first, before = first + count, first
    return steps


class _PackedScan(torch.autograd.Function):
    """(rows, W, U, b, c) -> states. Gates are kept after their sigmoid or tanh, in the order r, z, n."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, steps: list[tuple[slice, slice]]
    ) -> Tensor:
        hidden = u.shape[1]
        # What is added before the sigmoids can be added to the input's part once for all steps.
        gates = torch.addmm(torch.cat([b[: 2 * hidden] + c[: 2 * hidden], b[2 * hidden :]]), rows, w.T)
        states, recalled = gates.new_empty(len(rows), hidden), gates.new_empty(len(rows), hidden)
        for number, (now, before) in enumerate(steps):
            both, new = gates[now, : 2 * hidden], gates[now, 2 * hidden :]
            if number:
                from_state = states[before] @ u.T
                both += from_state[:, : 2 * hidden]
                torch.add(from_state[:, 2 * hidden :], c[2 * hidden :], out=recalled[now])
            else:
                recalled[now] = c[2 * hidden :]
            reset, update = both.sigmoid_().chunk(2, 1)
            new.addcmul_(reset, recalled[now]).tanh_()
            previous = states[before] if number else torch.zeros_like(new)
            torch.lerp(new, previous, update, out=states[now])
        ctx.save_for_backward(rows, w, u, gates, states, recalled)
        ctx.steps = steps
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, w, u, gates, states, recalled = ctx.saved_tensors
        hidden = u.shape[1]
        # Before the sigmoids and the tanh: of the input's part, and of the state's.
        grad_input, grad_recalled = torch.empty_like(gates), torch.empty_like(gates)
        previous, carried = torch.zeros_like(states), None
        # Laid out for the product below, which is a third faster so.
        u = u.T.contiguous().T
        for number, (now, before) in reversed(list(enumerate(ctx.steps))):
            reset, update, new = gates[now].chunk(3, 1)
            grad_state = grad[now].clone()
            if carried is not None:
                grad_state[: len(carried)] += carried
            if number:
                previous[now] = states[before]
            grad_new = torch.ops.aten.tanh_backward(torch.addcmul(grad_state, grad_state, update, value=-1), new)
            grad_update = torch.ops.aten.sigmoid_backward((previous[now] - new).mul_(grad_state), update)
            grad_reset = torch.ops.aten.sigmoid_backward(grad_new * recalled[now], reset)
            torch.cat([grad_reset, grad_update, grad_new], 1, out=grad_input[now])
            torch.cat([grad_reset, grad_update, grad_new.mul_(reset)], 1, out=grad_recalled[now])
            if number:
                carried = torch.addmm(grad_state.mul_(update), grad_recalled[now], u)
        grad_b = grad_input.sum(0)
        grad_c = torch.cat([grad_b[: 2 * hidden], grad_recalled[:, 2 * hidden :].sum(0)])
        grad_rows = grad_input @ w if ctx.needs_input_grad[0] else None
        return grad_rows, grad_input.T @ rows, grad_recalled.T @ previous, grad_b, grad_c, None
