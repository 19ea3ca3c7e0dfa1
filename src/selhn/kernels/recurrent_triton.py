"""The Triton kernels of `recurrent`; imported only where they run."""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels.gpu import wide_product

BLOCK = 512


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


# Compiling takes longer than many runs: one version must serve all steps.
@triton.jit(do_not_specialize=["step", "steps", "batch"])
def _forward_step(
    from_input, recalled, bias_n, state, states, gates, step, steps, batch, H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gates and new state of a block of units of one sequence."""
    direction, row = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    place = (direction * steps + step) * batch + row
    x = from_input + place * 3 * H + unit
    x_r, x_z, x_n = (tl.load(x, inside).to(tl.float32), tl.load(x + H, inside).to(tl.float32),
                     tl.load(x + 2 * H, inside).to(tl.float32))  # fmt: skip
    own = state + (direction * batch + row) * H + unit
    q = tl.load(bias_n + direction * H + unit, inside)
    recalls = inside & (step > 0)  # before the first step the state is zero
    h = tl.load(own, recalls, 0.0)
    u = recalled + (direction * batch + row) * 3 * H + unit
    x_r += tl.load(u, recalls, 0.0)
    x_z += tl.load(u + H, recalls, 0.0)
    q += tl.load(u + 2 * H, recalls, 0.0)
    r, z = _sigmoid(x_r), _sigmoid(x_z)
    n = _tanh(x_n + r * q)
    h = n + z * (h - n)
    tl.store(own, h, inside)
    tl.store(states + place * H + unit, h, inside)
    saved = gates + ((direction * steps + step) * 4 * batch + row) * H + unit
    tl.store(saved, r, inside)
    tl.store(saved + batch * H, z, inside)
    tl.store(saved + 2 * batch * H, n, inside)
    tl.store(saved + 3 * batch * H, q, inside)


@triton.jit(do_not_specialize=["step", "steps", "batch"])
def _backward_step(
    grad, from_next, carried, gates, states, grad_input, grad_recalled, step, steps, batch, H: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients before the functions of the gates, and what goes straight to the state of the step before."""
    direction, row = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    place = (direction * steps + step) * batch + row
    own = (direction * batch + row) * H + unit
    pull = tl.load(grad + place * H + unit, inside).to(tl.float32)
    carries = inside & (step < steps - 1)
    pull += tl.load(carried + own, carries, 0.0) + tl.load(from_next + own, carries, 0.0)
    saved = gates + ((direction * steps + step) * 4 * batch + row) * H + unit
    r, z = tl.load(saved, inside).to(tl.float32), tl.load(saved + batch * H, inside).to(tl.float32)
    n, q = (tl.load(saved + 2 * batch * H, inside).to(tl.float32),
            tl.load(saved + 3 * batch * H, inside).to(tl.float32))  # fmt: skip
    before = tl.load(states + (place - batch) * H + unit, inside & (step > 0), 0.0).to(tl.float32)
    d_n = pull * (1 - z) * (1 - n * n)
    d_z = pull * (before - n) * z * (1 - z)
    d_r = d_n * q * r * (1 - r)
    tl.store(carried + own, pull * z, inside)
    for_input = grad_input + place * 3 * H + unit
    tl.store(for_input, d_r, inside)
    tl.store(for_input + H, d_z, inside)
    tl.store(for_input + 2 * H, d_n, inside)
    for_state = grad_recalled + place * 3 * H + unit
    tl.store(for_state, d_r, inside)
    tl.store(for_state + H, d_z, inside)
    tl.store(for_state + 2 * H, d_n * r, inside)


class FusedScan(torch.autograd.Function):
    """(sequences, W, U, b, c) -> states, where W is (D, 3h, e) and so on."""

    @staticmethod
    def forward(ctx: Any, sequences: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
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
        grid = (directions, batch, triton.cdiv(hidden, BLOCK))
        for step in range(steps):
            recalled = (
                wide_product(states[:, step - 1], u.mT) if step else state
            )  # at the first it is not read
            _forward_step[grid](
                from_input, recalled, bias_n, state, states, gates, step, steps, batch, hidden, BLOCK
            )
        ctx.save_for_backward(padded, w, u, states, gates)
        ctx.width = sequences.shape[3]
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        padded, w, u, states, gates = ctx.saved_tensors
        directions, steps, batch, hidden = states.shape
        grad = grad.contiguous()
        # Gradients before the sigmoids and the tanh: of the input's part, and of the state's.
        grad_input, grad_recalled = (states.new_empty(directions, steps, batch, 3 * hidden) for _ in range(2))
        carried = torch.zeros(directions, batch, hidden, device=grad.device)
        from_next = carried  # at the last step it is not read
        grid = (directions, batch, triton.cdiv(hidden, BLOCK))
        for step in reversed(range(steps)):
            _backward_step[grid](
                grad,
                from_next,
                carried,
                gates,
                states,
                grad_input,
                grad_recalled,
                step,
                steps,
                batch,
                hidden,
                BLOCK,
            )
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
    return pad(matrix.to(torch.bfloat16), (0, -matrix.shape[-1] % 8))
