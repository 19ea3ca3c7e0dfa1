"""The Triton kernels of `recurrent`; imported only where they run.

A program has a direction, some sequences and some units. It multiplies the states of all units by its rows of
U, so that a step is one launch: with a product and a kernel for the gates it would be two, and the time between
launches is as long as the work. What a step hands to the next is stored in the order of steps; what belongs to
the input or the output, at the position of the sequence.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.ops.gpu import wide_product

ROWS, UNITS, DEPTH = 64, 32, 64
"""Sequences and units of a program, and the states that it multiplies at a time."""
PIPELINE = {"num_warps": 4, "num_stages": 5}
# Compiling takes longer than many runs: one version must serve all steps and batches.
ANY_SIZE = {"do_not_specialize": ["step", "steps", "batch", "summed"]}


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _whereabouts(lengths, step, steps, batch, H: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Of a program: direction, sequences, units, which of both exist, and the positions read in this step."""
    direction = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    length = tl.load(lengths + row, row < batch, 0)
    mirrored = length - 1 - step
    position = tl.where((direction == 1) & (mirrored >= 0), mirrored, step)
    inside = (row < batch)[:, None] & (unit < H)[None, :]
    return direction, row, unit, inside, (row * steps + position).to(tl.int64), position < length


@triton.jit(**ANY_SIZE)
def _forward_step(
    from_input, u, c, lengths, state, states, gates, step, steps, batch, summed,
    H: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Gates and new states."""
    direction, row, unit, inside, place, _ = _whereabouts(lengths, step, steps, batch, H, ROWS, UNITS)
    x = from_input + ((place * 2 + direction) * 3 * H)[:, None] + unit[None, :]
    x_r, x_z, x_n = tl.load(x, inside, 0.0), tl.load(x + H, inside, 0.0), tl.load(x + 2 * H, inside, 0.0)
    own = (direction * batch + row)[:, None] * H + unit[None, :]
    h = tl.load(state + own, inside & (step > 0), 0.0)
    r = tl.zeros([ROWS, UNITS], tl.float32)
    z = tl.zeros([ROWS, UNITS], tl.float32)
    q = tl.zeros([ROWS, UNITS], tl.float32)
    inner = tl.arange(0, DEPTH)
    before = states + ((direction * steps + step - 1) * batch + row)[:, None] * H + inner[None, :]
    weight = u + (direction * 3 * H + unit)[None, :] * H + inner[:, None]
    for first in range(0, summed, DEPTH):
        there = (first + inner < H) | (H % DEPTH == 0)
        a = tl.load(before + first, (row < batch)[:, None] & there[None, :], 0.0)
        known = (unit < H)[None, :] & there[:, None]
        r = tl.dot(a, tl.load(weight + first, known, 0.0), r)
        z = tl.dot(a, tl.load(weight + first + H * H, known, 0.0), z)
        q = tl.dot(a, tl.load(weight + first + 2 * H * H, known, 0.0), q)
    r, z = _sigmoid(r + x_r.to(tl.float32)), _sigmoid(z + x_z.to(tl.float32))
    q += tl.load(c + (direction * 3 + 2) * H + unit, unit < H, 0.0)[None, :]
    n = _tanh(x_n.to(tl.float32) + r * q)
    h = n + z * (h - n)
    tl.store(state + own, h, inside)
    saved = (direction * steps + step) * batch
    tl.store(states + (saved + row)[:, None] * H + unit[None, :], h, inside)
    at = gates + (4 * saved + row)[:, None] * H + unit[None, :]
    tl.store(at, r, inside)
    tl.store(at + batch * H, z, inside)
    tl.store(at + 2 * batch * H, n, inside)
    tl.store(at + 3 * batch * H, q, inside)


@triton.jit(**ANY_SIZE)
def _backward_step(
    grad, u, lengths, carried, gates, states, grad_input, grad_recalled, step, steps, batch, summed,
    H: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Gradients before the functions of the gates, and what goes straight to the state of the step before."""
    direction, row, unit, inside, place, real = _whereabouts(lengths, step, steps, batch, H, ROWS, UNITS)
    saved = (direction * steps + step) * batch
    at = gates + (4 * saved + row)[:, None] * H + unit[None, :]
    r, z = tl.load(at, inside, 0.0), tl.load(at + batch * H, inside, 0.0)
    n, q = tl.load(at + 2 * batch * H, inside, 0.0), tl.load(at + 3 * batch * H, inside, 0.0)
    before = states + (saved - batch + row)[:, None] * H + unit[None, :]
    before = tl.load(before, inside & (step > 0), 0.0).to(tl.float32)
    own = (direction * batch + row)[:, None] * H + unit[None, :]
    # The mean of both directions is half of each.
    pull = tl.load(grad + place[:, None] * H + unit[None, :], inside & real[:, None], 0.0).to(tl.float32) / 2
    pull += tl.load(carried + own, inside & (step < steps - 1), 0.0)
    inner = tl.arange(0, DEPTH)
    after = grad_recalled + (saved + batch + row)[:, None] * 3 * H + inner[None, :]
    weight = u + (direction * 3 * H + inner)[:, None] * H + unit[None, :]
    for first in range(0, summed, DEPTH):
        there = (first + inner < 3 * H) | (3 * H % DEPTH == 0)
        a = tl.load(after + first, (row < batch)[:, None] & there[None, :], 0.0)
        pull = tl.dot(a, tl.load(weight + first * H, (unit < H)[None, :] & there[:, None], 0.0), pull)
    r, z, n, q = r.to(tl.float32), z.to(tl.float32), n.to(tl.float32), q.to(tl.float32)
    d_n = pull * (1 - z) * (1 - n * n)
    d_z = pull * (before - n) * z * (1 - z)
    d_r = d_n * q * r * (1 - r)
    tl.store(carried + own, pull * z, inside)
    at = grad_input + ((place * 2 + direction) * 3 * H)[:, None] + unit[None, :]
    tl.store(at, d_r, inside)
    tl.store(at + H, d_z, inside)
    tl.store(at + 2 * H, d_n, inside)
    at = grad_recalled + (saved + row)[:, None] * 3 * H + unit[None, :]
    tl.store(at, d_r, inside)
    tl.store(at + H, d_z, inside)
    tl.store(at + 2 * H, d_n * r, inside)


@triton.jit(do_not_specialize=["steps", "batch"])
def _mean(states, lengths, mean, steps, batch, H: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of both directions at one position of one sequence."""
    row, position = tl.program_id(0) // steps, tl.program_id(0) % steps
    length = tl.load(lengths + row)
    unit = tl.arange(0, BLOCK)
    known = (unit < H) & (position < length)
    ahead = tl.load(states + (position * batch + row).to(tl.int64) * H + unit, known, 0.0).to(tl.float32)
    back = ((steps + length - 1 - position) * batch + row).to(tl.int64)
    back = tl.load(states + back * H + unit, known, 0.0).to(tl.float32)
    tl.store(mean + tl.program_id(0).to(tl.int64) * H + unit, (ahead + back) / 2, unit < H)


class FusedScan(torch.autograd.Function):
    """(sequences, lengths, W, U, b, c of each direction) -> the mean of the states."""

    @staticmethod
    def forward(ctx: Any, sequences: Tensor, lengths: Tensor, *weights: Tensor) -> Tensor:
        (batch, steps, width), hidden = sequences.shape, weights[2].shape[1]
        half: dict[str, Any] = {"dtype": torch.bfloat16, "device": sequences.device}
        lengths = lengths.to(torch.int32)
        # An input that is always 1 has the biases as its weights: the products give their gradients too.
        # More of them, with weight 0, up to a width that matrix units read at full speed.
        padded = torch.ones(batch, steps, width + 1 + -(width + 1) % 8, **half)
        padded[..., :width] = sequences
        w, u = torch.zeros(2, 3 * hidden, padded.shape[2], **half), torch.empty(2, 3 * hidden, hidden, **half)
        torch._foreach_copy_([*w[..., :width], *u], weights[:4])
        b, c = torch.stack(weights[4:6]), torch.stack(weights[6:])
        # What is added before the sigmoids can be added to the input's part once for all steps.
        w[:, : 2 * hidden, width] = b[:, : 2 * hidden] + c[:, : 2 * hidden]
        w[:, 2 * hidden :, width] = b[:, 2 * hidden :]
        from_input = padded.flatten(0, 1) @ w.flatten(0, 1).T
        states = torch.empty(2, steps, batch, hidden, **half)
        gates = torch.empty(2, steps, 4, batch, hidden, **half)
        state = torch.empty(2, batch, hidden, device=sequences.device)
        sizes = (hidden, ROWS, UNITS, DEPTH)
        for step in range(steps):
            summed = hidden if step else 0  # before the first step the state is zero
            _forward_step[_grid(batch, hidden)](
                from_input,
                u,
                c,
                lengths,
                state,
                states,
                gates,
                step,
                steps,
                batch,
                summed,
                *sizes,
                **PIPELINE,
            )
        mean = torch.empty(batch, steps, hidden, **half)
        block = triton.next_power_of_2(hidden)
        _mean[(batch * steps,)](states, lengths, mean, steps, batch, hidden, block)
        ctx.save_for_backward(lengths, padded, w, u, states, gates)
        ctx.width = width
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        lengths, padded, w, u, states, gates = ctx.saved_tensors
        _, steps, batch, hidden = states.shape
        grad = grad.contiguous()
        # Gradients before the sigmoids and the tanh: of the input's part, and of the state's.
        grad_input = states.new_empty(batch * steps, 6 * hidden)
        grad_recalled = states.new_empty(2, steps, batch, 3 * hidden)
        carried = torch.empty(2, batch, hidden, device=grad.device)
        sizes = (hidden, ROWS, UNITS, DEPTH)
        for step in reversed(range(steps)):
            summed = 3 * hidden if step < steps - 1 else 0
            _backward_step[_grid(batch, hidden)](
                grad, u, lengths, carried, gates, states, grad_input, grad_recalled, step, steps, batch, summed,
                *sizes, **PIPELINE,
            )  # fmt: skip
        rows = padded.flatten(0, 1)
        grad_sequences = (grad_input @ w.flatten(0, 1))[:, : ctx.width].view(batch, steps, -1)
        grad_w = wide_product(grad_input.T, rows).view(2, 3 * hidden, -1)
        grad_u = wide_product(grad_recalled[:, 1:].flatten(1, 2).mT, states[:, :-1].flatten(1, 2))
        grad_b = grad_w[..., ctx.width].contiguous()
        grad_c_n = grad_recalled[..., 2 * hidden :].sum(dim=(1, 2), dtype=torch.float32)
        grad_c = torch.cat([grad_b[:, : 2 * hidden], grad_c_n], dim=1)
        return grad_sequences, None, *grad_w[..., : ctx.width], *grad_u, *grad_b, *grad_c


def _grid(batch: int, hidden: int) -> tuple[int, int, int]:
    return triton.cdiv(hidden, UNITS), triton.cdiv(batch, ROWS), 2
