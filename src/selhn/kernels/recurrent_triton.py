"""The Triton kernels of `recurrent`; imported only where they run."""

import triton
import triton.language as tl
from torch import Tensor

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


def forward_step(
    from_input: Tensor, recalled: Tensor | None, bias_n: Tensor, state: Tensor, states: Tensor, gates: Tensor, step: int
) -> None:
    """Write the gates and the state of a step; `recalled` is U h of the step before, None at the first."""
    directions, steps, batch, hidden = states.shape
    grid = (directions, batch, triton.cdiv(hidden, BLOCK))
    recalled = state if recalled is None else recalled  # not read then
    _forward_step[grid](from_input, recalled, bias_n, state, states, gates, step, steps, batch, hidden, BLOCK)


def backward_step(
    grad: Tensor, from_next: Tensor | None, carried: Tensor, gates: Tensor, states: Tensor,
    grad_input: Tensor, grad_recalled: Tensor, step: int,
) -> None:  # fmt: skip
    """Write the gradients of a step; `from_next` came back through U from the step after, None at the last."""
    directions, steps, batch, hidden = states.shape
    grid = (directions, batch, triton.cdiv(hidden, BLOCK))
    from_next = carried if from_next is None else from_next  # not read then
    _backward_step[grid](
        grad, from_next, carried, gates, states, grad_input, grad_recalled, step, steps, batch, hidden, BLOCK
    )
