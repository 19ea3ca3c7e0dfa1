"""The Triton kernels of `pooling`; imported only where they run."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

NOWHERE = 255
"""The place of a masked member."""


@triton.jit
def _key(value, place):
    """Numbers in the order of the values, and among equal values in that of their places in the set.

    With 16 bits per value they are whole numbers that a float32 holds exactly, otherwise 64 bits wide.
    """
    if value.dtype.primitive_bitwidth == 16:
        bits = value.to(tl.int16, bitcast=True).to(tl.int32)
        key = ((bits ^ ((bits >> 31) & 0x7FFF)) * 128 + (127 - place)).to(tl.float32)
    else:
        bits = value.to(tl.int32, bitcast=True)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * 128 + (127 - place)
    return key


@triton.jit
def _is_ahead(rival, key):
    """1 where a rival has the larger key, else 0."""
    if key.dtype == tl.float32:
        # The difference of whole numbers, cut to [0, 1]: one instruction, at twice the rate of comparing.
        ahead = tl.inline_asm_elementwise(
            "sub.sat.f32 $0, $1, $2;", "=f,f,f", [rival, key], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        ahead = (rival > key).to(tl.float32)
    return ahead


# An unspecialised D also keeps a channel to a thread with all members, which then share a rival's key.
@triton.jit(do_not_specialize=["M", "D"])
def _pool(
    features, mask, weights, pooled, places, ordered, M, D,
    MEMBERS: tl.constexpr, CHANNELS: tl.constexpr, NOWHERE: tl.constexpr,
):  # fmt: skip
    """A block of channels of one set: count for every value how many come before it."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    member = tl.arange(0, MEMBERS)
    inside = (member[:, None] < M) & (channel[None, :] < D)
    at = features + row * M * D + member[:, None] * D + channel[None, :]
    present = tl.load(mask + row * M + member, mask=member < M, other=0) != 0
    value = tl.load(at, mask=inside, other=0.0)
    key = _key(value, member[:, None])
    place = tl.zeros([MEMBERS, CHANNELS], tl.float32)
    for other in range(0, M):
        rival = _key(tl.load(features + (row * M + other) * D + channel, mask=channel < D, other=0.0), other)
        if tl.load(mask + row * M + other) != 0:
            place += _is_ahead(rival[None, :], key)
    value, place = value.to(tl.float32), place.to(tl.int32)
    real = present[:, None] & inside
    weight = tl.load(weights + row * M + place, mask=real, other=0.0)
    tl.store(
        pooled + row * D + channel, tl.sum(tl.where(real, weight * value, 0.0), axis=0), mask=channel < D
    )
    tl.store(
        places + row * M * D + member[:, None] * D + channel[None, :],
        tl.where(real, place, NOWHERE),
        mask=inside,
    )
    tl.store(ordered + row * M * D + place * D + channel[None, :], value, mask=real)


@triton.jit(do_not_specialize=["M"])
def _pool_backward(
    grad, places, ordered, weights, grad_features, grad_weights, M, D,
    MEMBERS: tl.constexpr, CHANNELS: tl.constexpr, NOWHERE: tl.constexpr,
):  # fmt: skip
    """The gradient of each value is the weight of its place; that of a weight, a sum over the channels."""
    row = tl.program_id(0).to(tl.int64)
    member = tl.arange(0, MEMBERS)
    total = tl.zeros([MEMBERS], tl.float32)
    for first in range(0, D, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        inside = (member[:, None] < M) & (channel[None, :] < D)
        at = row * M * D + member[:, None] * D + channel[None, :]
        pull = tl.load(grad + row * D + channel, mask=channel < D, other=0.0)
        place = tl.load(places + at, mask=inside, other=NOWHERE).to(tl.int32)
        weight = tl.load(weights + row * M + place, mask=place != NOWHERE, other=0.0)
        tl.store(grad_features + at, weight * pull[None, :], mask=inside)
        value = tl.load(ordered + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(value * pull[None, :], axis=1)
    tl.store(grad_weights + row * M + member, total, mask=member < M)


class PoolSorted(torch.autograd.Function):
    """(features, mask, weights) -> pooled, in float32; keeps every value's place, and the values in order."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
        features, weights32 = features.contiguous(), weights.float().contiguous()
        batch, size, dim = features.shape
        pooled = torch.empty(batch, dim, device=features.device)
        places = torch.empty_like(features, dtype=torch.uint8)
        ordered = torch.zeros_like(features)
        members = max(16, triton.next_power_of_2(size))
        channels = max(16, 4096 // members)
        _pool[(batch, triton.cdiv(dim, channels))](
            features,
            mask.contiguous(),
            weights32,
            pooled,
            places,
            ordered,
            size,
            dim,
            members,
            channels,
            NOWHERE,
        )
        ctx.save_for_backward(places, ordered, weights32)
        ctx.dtype = weights.dtype
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        places, ordered, weights = ctx.saved_tensors
        batch, size, dim = places.shape
        grad_features, grad_weights = torch.empty_like(ordered), torch.empty_like(weights)
        members = max(16, triton.next_power_of_2(size))
        _pool_backward[(batch,)](
            grad.float().contiguous(), places, ordered, weights, grad_features, grad_weights, size, dim, members,
            8192 // members, NOWHERE, num_warps=8,
        )  # fmt: skip
        return grad_features, None, grad_weights.to(ctx.dtype)
