"""The layers of a BERT: plain torch, and for short texts in half precision on a GPU a few kernels of our own.

    a = LayerNorm(x + dropout(attention(x) W_o + b_o))
    y = LayerNorm(a + dropout(gelu(a W_i + b_i) W_2 + b_2))

Captions are short: there the general attention kernels wait more than they work, and casts, biases and norms,
each in a kernel of its own, take longer than the matrix products. The kernels here compute what
`torch.autocast` would, and round less often; only the residual stream is in half precision too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int16
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from selhn.ops.gpu import Aside, fusable, wide_product

MOST_TOKENS = 64
HEAD_WIDTHS = (16, 32, 64)


class LayerWeights(NamedTuple):
    """Weights and biases of one layer, in the order of the computation; a weight is (out, in)."""

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    project: Tensor
    project_bias: Tensor
    middle_gamma: Tensor
    middle_beta: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor
    gamma: Tensor
    beta: Tensor


class LayerSettings(NamedTuple):
    """What all layers share. The two probabilities of dropout are 0 outside of training."""

    heads: int
    eps: float
    dropout: float
    attention_dropout: float


def transformer_layers(
    states: Float[Tensor, "T N h"],
    mask: Bool[Tensor, "T N"],
    layers: Sequence[LayerWeights],
    settings: LayerSettings,
) -> Float[Tensor, "T N h"]:
    """The states after all layers; no token attends to a masked one."""
    if not _can_fuse(states, mask, layers, settings.heads):
        for weights in layers:
            states = _layer(states, mask, weights, settings)
        return states
    half = torch.get_autocast_dtype("cuda")
    mask, x = mask.contiguous(), states.flatten(0, 1).to(half)
    hidden, pairs = x.numel(), mask.shape[0] * settings.heads * mask.shape[1] ** 2
    counts = [hidden * (settings.dropout > 0)] * 2 + [pairs * (settings.attention_dropout > 0)]
    bits = _random_bits(sum(counts) * len(layers), x.device).view(len(layers), -1)
    for weights, halves, drawn in zip(layers, _halves(layers, half), bits):
        x = _FusedLayer.apply(x, mask, drawn.split(counts), settings, halves, *weights)
    return x.view(states.shape)


def _layer(x: Tensor, mask: Tensor, w: LayerWeights, settings: LayerSettings) -> Tensor:
    query, key, value = (
        F.linear(x, weight, bias).unflatten(2, (settings.heads, -1)).transpose(1, 2)
        for weight, bias in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    # Finite, so that a text without tokens gives numbers and not NaN.
    hidden = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=hidden[:, None, None, :], dropout_p=settings.attention_dropout
    )
    projected = F.linear(context.transpose(1, 2).flatten(2), w.project, w.project_bias)
    x = x + F.dropout(projected, settings.dropout, settings.dropout > 0)
    x = F.layer_norm(x, x.shape[2:], w.middle_gamma, w.middle_beta, settings.eps)
    outer = F.linear(F.gelu(F.linear(x, w.inner, w.inner_bias)), w.outer, w.outer_bias)
    x = x + F.dropout(outer, settings.dropout, settings.dropout > 0)
    return F.layer_norm(x, x.shape[2:], w.gamma, w.beta, settings.eps)


def _can_fuse(states: Tensor, mask: Tensor, layers: Sequence[LayerWeights], heads: int) -> bool:
    if not (layers and fusable(states, mask) and torch.is_autocast_enabled("cuda")):
        return False
    widest = max(3 * states.shape[2], len(layers[0].inner))
    return (
        mask.shape[1] <= MOST_TOKENS
        and states.shape[2] // heads in HEAD_WIDTHS
        and 0 < mask.numel() * widest < 2**31  # the kernels count in 32 bits
    )


def _random_bits(count: int, device: torch.device) -> Int16[Tensor, " n"]:
    """16 random bits each, from torch's own generator, drawn 64 at a time."""
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    return words.view(torch.int16)[:count]


@torch.no_grad()
def _halves(layers: Sequence[LayerWeights], half: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Per layer in half precision: query, key and value as one matrix and bias, then the other matrices."""
    copies, targets, sources = [], [], []
    for w in layers:
        qkv = w.query.new_empty(3 * len(w.query), w.query.shape[1], dtype=half)
        qkv_bias = w.query.new_empty(3 * len(w.query), dtype=half)
        others = [torch.empty_like(weight, dtype=half) for weight in (w.project, w.inner, w.outer)]
        copies.append((qkv, qkv_bias, *others))
        targets += [*qkv.chunk(3), *qkv_bias.chunk(3), *others]
        sources += [
            w.query,
            w.key,
            w.value,
            w.query_bias,
            w.key_bias,
            w.value_bias,
            w.project,
            w.inner,
            w.outer,
        ]
    torch._foreach_copy_(targets, sources)
    return copies


class _FusedLayer(torch.autograd.Function):
    """One layer over the rows (R, h) of all texts: x -> y, with `bits` for its three dropouts."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor,
        bits: tuple[Tensor, Tensor, Tensor],
        settings: LayerSettings,
        halves: tuple[Tensor, ...],
        *weights: Tensor,
    ) -> Tensor:
        from selhn.kernels import transformer as kernels

        w, (heads, heads_bias, project, inner, outer) = LayerWeights(*weights), halves
        drops = _dropouts(bits, settings)
        qkv = torch.addmm(heads_bias, x, heads.T)
        context = kernels.attend(qkv, mask, settings.heads, drops[2])
        projected = context @ project.T
        a = kernels.add_norm(
            projected, w.project_bias, x, w.middle_gamma, w.middle_beta, settings.eps, drops[0]
        )
        before = a @ inner.T
        active = kernels.bias_gelu(before, w.inner_bias)
        last = active @ outer.T
        ctx.save_for_backward(
            x, mask, *bits, *halves, *weights, qkv, context, projected, a, before, active, last
        )
        ctx.settings = settings
        return kernels.add_norm(last, w.outer_bias, a, w.gamma, w.beta, settings.eps, drops[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from selhn.kernels import transformer as kernels

        x, mask, *saved = ctx.saved_tensors
        bits, (heads, _, project, inner, outer), saved = saved[:3], saved[3:8], saved[8:]
        w, (qkv, context, projected, a, before, active, last) = LayerWeights(*saved[:16]), saved[16:]
        settings, drops = ctx.settings, _dropouts(bits, ctx.settings)
        # No later layer waits for the gradients of weights: they are computed beside those of the states.
        aside = Aside()
        dlast, da, norm = kernels.add_norm_backward(
            dy.contiguous(), last, w.outer_bias, a, w.gamma, settings.eps, drops[1]
        )
        outer_grad, norm_sums = aside(lambda: (wide_product(dlast.T, active), kernels.column_sums(norm)))
        dbefore, inner_bias = kernels.bias_gelu_backward(dlast @ outer, before, w.inner_bias)
        inner_grad, inner_sums = aside(lambda: (wide_product(dbefore.T, a), kernels.column_sums(inner_bias)))
        da.addmm_(dbefore, inner)
        dprojected, dx, middle = kernels.add_norm_backward(
            da, projected, w.project_bias, x, w.middle_gamma, settings.eps, drops[0]
        )
        project_grad, middle_sums = aside(
            lambda: (wide_product(dprojected.T, context), kernels.column_sums(middle))
        )
        dqkv, qkv_bias = kernels.attend_backward(dprojected @ project, qkv, mask, settings.heads, drops[2])
        qkv_grad, qkv_sums = aside(lambda: (wide_product(dqkv.T, x), kernels.column_sums(qkv_bias)))
        dx.addmm_(dqkv, heads)
        aside.join()
        (query, key, value), (query_bias, key_bias, value_bias) = qkv_grad.chunk(3), qkv_sums.chunk(3)
        (gamma, beta, outer_bias), (middle_gamma, middle_beta, project_bias) = (
            norm_sums.chunk(3),
            middle_sums.chunk(3),
        )
        grads = LayerWeights(
            query, query_bias, key, key_bias, value, value_bias, project_grad, project_bias, middle_gamma, middle_beta,
            inner_grad, inner_sums, outer_grad, outer_bias, gamma, beta,
        )  # fmt: skip
        return dx, None, None, None, None, *grads


def _dropouts(bits: Sequence[Tensor], settings: LayerSettings) -> list[tuple[Tensor, int, float]]:
    """Of the first and last norm and the attention: random bits, the least that keeps, and the scale."""
    chances = (settings.dropout, settings.dropout, settings.attention_dropout)
    drawn = [(own, round(chance * 2**16)) for own, chance in zip(bits, chances)]
    return [(own, dropped - 2**15, 2**16 / max(1, 2**16 - dropped)) for own, dropped in drawn]
