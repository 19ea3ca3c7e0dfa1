"""The Triton kernels of `transformer`; imported only where they run.

Activations are read and written in half precision and worked on in float32. Dropout keeps a value whose 16
random bits reach `threshold` and multiplies it by `scale`; the backward kernels read the same bits again.
Whatever a bias, gamma or beta receives is summed over some rows in each program, and over the programs by
another kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

Dropout = tuple[Tensor, int, float]
"""Random bits, none of them where nothing is dropped; the threshold; the scale."""
PROGRAMS = 264
"""Of a backward pass over rows: two for every multiprocessor of an H200."""


@triton.jit
def _dropout_factor(bits, at, inside, threshold, scale, DROP: tl.constexpr):
    factor = 1.0
    if DROP:
        factor = tl.where(tl.load(bits + at, mask=inside, other=0).to(tl.int32) >= threshold, scale, 0.0)
    return factor


@triton.jit
def _normalise(
    x, bias, residual, bits, at, column, inside, width, eps, threshold, scale, DROP: tl.constexpr,
):  # fmt: skip
    """`dropout(x + bias) + residual` with mean 0 and variance 1, what it was divided by, and the dropout."""
    factor = _dropout_factor(bits, at, inside, threshold, scale, DROP)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0)
    value = value * factor + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, value - tl.sum(value, axis=1)[:, None] / width, 0.0)
    inverse = tl.rsqrt(tl.sum(value * value, axis=1)[:, None] / width + eps)
    return value * inverse, inverse, factor


@triton.jit
def _add_norm(
    x, bias, residual, gamma, beta, bits, y, rows, width, eps, threshold, scale,
    DROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    at = row * width + column
    normal, _, _ = _normalise(x, bias, residual, bits, at, column, inside, width, eps, threshold, scale, DROP)
    normal *= tl.load(gamma + column, mask=column < width, other=0.0)
    normal += tl.load(beta + column, mask=column < width, other=0.0)
    tl.store(y + at, normal, mask=inside)


@triton.jit
def _add_norm_backward(
    dy, x, bias, residual, gamma, bits, dx, dresidual, sums, rows, width, eps, threshold, scale,
    DROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Every so many rows; `sums` receives this program's share for gamma, beta and bias."""
    column = tl.arange(0, COLUMNS)[None, :]
    slope = tl.load(gamma + column, mask=column < width, other=0.0)
    dgamma = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbeta = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < width)
        at = row * width + column
        grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        normal, inverse, factor = _normalise(
            x, bias, residual, bits, at, column, inside, width, eps, threshold, scale, DROP
        )
        dgamma += grad * normal
        dbeta += grad
        grad *= slope
        along = tl.sum(grad * normal, axis=1)[:, None] / width
        grad = (grad - tl.sum(grad, axis=1)[:, None] / width - normal * along) * inverse
        tl.store(dresidual + at, grad, mask=inside)
        grad *= factor
        tl.store(dx + at, grad, mask=inside)
        dbias += grad
    at = sums + tl.program_id(0) * 3 * width + tl.arange(0, COLUMNS)
    tl.store(at, tl.sum(dgamma, axis=0), mask=tl.arange(0, COLUMNS) < width)
    tl.store(at + width, tl.sum(dbeta, axis=0), mask=tl.arange(0, COLUMNS) < width)
    tl.store(at + 2 * width, tl.sum(dbias, axis=0), mask=tl.arange(0, COLUMNS) < width)


@triton.jit
def _normal_below(value):
    """The share of a normal distribution below a value, and its density there, within 1e-7.

    By formula 7.1.26 of Abramowitz and Stegun, whose exponential is also that of the density.
    """
    decay = tl.exp(-0.5 * value * value)
    t = 1 / (1 + 0.3275911 * 0.7071067811865476 * tl.abs(value))
    tail = (
        t
        * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        * decay
    )
    return tl.where(value < 0, tail, 1 - tail), 0.3989422804014327 * decay


@triton.jit
def _bias_gelu(x, bias, y, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0)
    below, _ = _normal_below(value)
    tl.store(y + row * width + column, value * below, mask=inside)


@triton.jit
def _bias_gelu_backward(dy, x, bias, dx, sums, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A block of columns over every so many rows."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    shift = tl.load(bias + column, mask=column < width, other=0.0)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < width)
        value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32) + shift
        below, density = _normal_below(value)
        grad = tl.load(dy + row * width + column, mask=inside, other=0.0).to(tl.float32)
        grad *= below + value * density
        tl.store(dx + row * width + column, grad, mask=inside)
        dbias += grad
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + tl.program_id(0) * width + at, tl.sum(dbias, axis=0), mask=at < width)


@triton.jit
def _column_sums(parts, sums, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, count, ROWS):
        part = first + tl.arange(0, ROWS)[:, None]
        total += tl.load(parts + part * width + column, mask=(part < count) & (column < width), other=0.0)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + at, tl.sum(total, axis=0), mask=at < width)


@triton.jit
def _attention(q, k, mask, token, N, D: tl.constexpr):
    """softmax(q k' / sqrt(D)) over the tokens that are there; over all of them where none is."""
    present = tl.load(mask + token, mask=token < N, other=0) != 0
    scores = tl.dot(q, tl.trans(k)) * (D**-0.5)
    scores = tl.where(present[None, :], scores, -1e30)
    scores = tl.where(token[None, :] < N, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _attend(
    qkv, mask, bits, context, N, threshold, scale,
    DROP: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One head of one text."""
    text, head, width = tl.program_id(0), tl.program_id(1), tl.num_programs(1) * D
    token, unit = tl.arange(0, TOKENS), head * D + tl.arange(0, D)
    inside = (token[:, None] < N) & (unit[None, :] < width)
    at = (text * N + token)[:, None] * (3 * width) + unit[None, :]
    q = tl.load(qkv + at, mask=inside, other=0.0)
    k = tl.load(qkv + at + width, mask=inside, other=0.0)
    v = tl.load(qkv + at + 2 * width, mask=inside, other=0.0)
    weights = _attention(q, k, mask + text * N, token, N, D)
    pair = ((text * tl.num_programs(1) + head) * N + token[:, None]) * N + token[None, :]
    both = (token[:, None] < N) & (token[None, :] < N)
    weights *= _dropout_factor(bits, pair, both, threshold, scale, DROP)
    at = (text * N + token)[:, None] * width + unit[None, :]
    tl.store(context + at, tl.dot(weights.to(v.dtype), v), mask=inside)


@triton.jit
def _attend_backward(
    dcontext, qkv, mask, bits, dqkv, sums, N, threshold, scale,
    DROP: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One head of one text; `sums` receives the text's share for the three biases."""
    text, head, width = tl.program_id(0), tl.program_id(1), tl.num_programs(1) * D
    token, unit = tl.arange(0, TOKENS), head * D + tl.arange(0, D)
    inside = (token[:, None] < N) & (unit[None, :] < width)
    at = (text * N + token)[:, None] * (3 * width) + unit[None, :]
    q = tl.load(qkv + at, mask=inside, other=0.0)
    k = tl.load(qkv + at + width, mask=inside, other=0.0)
    v = tl.load(qkv + at + 2 * width, mask=inside, other=0.0)
    grad = tl.load(dcontext + (text * N + token)[:, None] * width + unit[None, :], mask=inside, other=0.0)
    weights = _attention(q, k, mask + text * N, token, N, D)
    pair = ((text * tl.num_programs(1) + head) * N + token[:, None]) * N + token[None, :]
    both = (token[:, None] < N) & (token[None, :] < N)
    factor = _dropout_factor(bits, pair, both, threshold, scale, DROP)
    dv = tl.dot(tl.trans((weights * factor).to(v.dtype)), grad)
    dweights = tl.dot(grad, tl.trans(v)) * factor
    dscores = weights * (dweights - tl.sum(weights * dweights, axis=1)[:, None]) * (D**-0.5)
    dscores = dscores.to(q.dtype)
    dq = tl.dot(dscores, k)
    dk = tl.dot(tl.trans(dscores), q)
    tl.store(dqkv + at, dq, mask=inside)
    tl.store(dqkv + at + width, dk, mask=inside)
    tl.store(dqkv + at + 2 * width, dv, mask=inside)
    share = sums + text * 3 * width + unit
    tl.store(share, tl.sum(dq, axis=0))
    tl.store(share + width, tl.sum(dk, axis=0))
    tl.store(share + 2 * width, tl.sum(dv, axis=0))


def _norm_block(width: int) -> tuple[int, int]:
    """Rows and columns of a block: whole rows, about 4096 values."""
    columns = triton.next_power_of_2(width)
    return max(1, 4096 // columns), columns


def add_norm(
    x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, eps: float, drop: Dropout
) -> Tensor:
    """`LayerNorm(dropout(x + bias) + residual)` of rows (R, h)."""
    y = torch.empty_like(x)
    rows, columns = _norm_block(x.shape[1])
    _add_norm[(triton.cdiv(len(x), rows),)](
        x, bias, residual, gamma, beta, drop[0], y, *x.shape, eps, *drop[1:], drop[0].numel() > 0, rows, columns,
        num_warps=4,
    )  # fmt: skip
    return y


def add_norm_backward(
    dy: Tensor, x: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, eps: float, drop: Dropout
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the residual (R, h), and parts (P, 3h) of those of gamma, beta and the bias."""
    dx, dresidual = torch.empty_like(x), torch.empty_like(x)
    rows, columns = _norm_block(x.shape[1])
    programs = min(PROGRAMS, triton.cdiv(len(x), rows))
    parts = torch.empty(programs, 3 * x.shape[1], device=x.device)
    _add_norm_backward[(programs,)](
        dy, x, bias, residual, gamma, drop[0], dx, dresidual, parts, *x.shape, eps, *drop[1:], drop[0].numel() > 0,
        rows, columns, num_warps=4,
    )  # fmt: skip
    return dx, dresidual, parts


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """`gelu(x + bias)` of rows (R, h)."""
    y = torch.empty_like(x)
    _bias_gelu[(triton.cdiv(len(x), 16), triton.cdiv(x.shape[1], 128))](x, bias, y, *x.shape, 16, 128)
    return y


def bias_gelu_backward(dy: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x (R, h), and parts (P, h) of that of the bias."""
    dx = torch.empty_like(x)
    blocks = triton.cdiv(x.shape[1], 128)
    programs = min(triton.cdiv(4 * PROGRAMS, blocks), triton.cdiv(len(x), 16))
    parts = torch.empty(programs, x.shape[1], device=x.device)
    _bias_gelu_backward[(programs, blocks)](dy, x, bias, dx, parts, *x.shape, 16, 128)
    return dx, parts


def attend(qkv: Tensor, mask: Tensor, heads: int, drop: Dropout) -> Tensor:
    """The values (T * N, h) that every token gathers from its text (T, N), all heads side by side."""
    texts, tokens = mask.shape
    block = max(16, triton.next_power_of_2(tokens))
    width = qkv.shape[1] // 3
    context = torch.empty(len(qkv), width, dtype=qkv.dtype, device=qkv.device)
    _attend[(texts, heads)](
        qkv, mask, drop[0], context, tokens, *drop[1:], drop[0].numel() > 0, width // heads, block,
        num_warps=max(2, block // 16),
    )  # fmt: skip
    return context


def attend_backward(
    dcontext: Tensor, qkv: Tensor, mask: Tensor, heads: int, drop: Dropout
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv (T * N, 3h), and parts (T, 3h) of its sum over all rows."""
    texts, tokens = mask.shape
    block = max(16, triton.next_power_of_2(tokens))
    dqkv = torch.empty_like(qkv)
    parts = torch.empty(texts, qkv.shape[1], device=qkv.device)
    _attend_backward[(texts, heads)](
        dcontext, qkv, mask, drop[0], dqkv, parts, tokens, *drop[1:], drop[0].numel() > 0,
        qkv.shape[1] // 3 // heads, block, num_warps=max(2, block // 16),
    )  # fmt: skip
    return dqkv, parts


def column_sums(parts: Tensor) -> Tensor:
    """The sum (C) of a few rows (P, C), always in the same order."""
    sums = torch.empty(parts.shape[1], device=parts.device)
    _column_sums[(triton.cdiv(parts.shape[1], 16),)](parts, sums, *parts.shape, 256, 16)
    return sums
