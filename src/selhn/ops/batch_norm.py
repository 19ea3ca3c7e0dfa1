"""Batch norm of regions under a mask, and over the batches of all processes that train together."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.base.ranks import Processes, total
from selhn.base.types import at_least_float32


class SyncedBatchNorm(nn.BatchNorm1d):
    """Batch norm with the statistics of all ranks, made by `synced`. Unlike torch's it runs on a CPU too."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        rows = input.movedim(1, -1)
        weight = torch.ones(*rows.shape[:-1], 1, dtype=rows.dtype, device=rows.device)
        return weighted_batch_norm(self, rows, weight).movedim(-1, 1)


@contextmanager
def synced(model: nn.Module) -> Iterator[None]:
    """Within the block, every batch norm of a model takes its statistics from the batches of all ranks."""
    norms = [part for part in model.modules() if type(part) is nn.BatchNorm1d]
    for norm in norms:
        norm.__class__ = SyncedBatchNorm
    try:
        yield
    finally:
        for norm in norms:
            norm.__class__ = nn.BatchNorm1d


def ranks_of(norm: nn.BatchNorm1d) -> Processes | None:
    """The processes whose batches a norm takes its statistics from; None if it is not `synced`."""
    return Processes.of() if isinstance(norm, SyncedBatchNorm) else None


def over_ranks(norm: nn.BatchNorm1d, own: Tensor) -> Tensor:
    """For a `synced` norm, the sum over all processes, with its gradient."""
    ranks = ranks_of(norm)
    return own if ranks is None else total(own, ranks)


@contextmanager
def remembering_nothing(model: nn.Module) -> Iterator[None]:
    """Within the block, running statistics do not change: a batch that is encoded twice counts once."""
    norms = [
        part for part in model.modules() if isinstance(part, nn.BatchNorm1d) and part.track_running_stats
    ]
    before = [(norm.momentum, norm.get_buffer("num_batches_tracked").clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, before):
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(batches)


def masked_batch_norm(
    norm: nn.BatchNorm1d, features: Float[Tensor, "B M c"], mask: Bool[Tensor, "B M"] | None
) -> Float[Tensor, "B M c"]:
    """Batch norm of every region; in training with the statistics of the real regions, or of all."""
    if mask is None or not norm.training:
        return norm(features.flatten(0, 1)).unflatten(0, features.shape[:2])
    # No indexing by the mask: the shapes of a recorded step may not depend on values.
    return weighted_batch_norm(norm, features, mask[:, :, None])


def weighted_batch_norm(
    norm: nn.BatchNorm1d,
    features: Float[Tensor, "*n c"],
    weight: Float[Tensor, "*n 1"] | Bool[Tensor, "*n 1"],
) -> Float[Tensor, "*n c"]:
    """Batch norm in training; rows of weight 0 do not count in the statistics, rows of weight 1 do."""
    rows = at_least_float32(features)
    weight, axes = weight.to(rows.dtype), tuple(range(rows.ndim - 1))
    count = over_ranks(norm, weight.sum()).clamp(min=1)
    mean = over_ranks(norm, (rows * weight).sum(axes)) / count
    variance = over_ranks(norm, ((rows - mean).square() * weight).sum(axes)) / count
    if norm.track_running_stats:
        with torch.no_grad():
            batches = norm.get_buffer("num_batches_tracked").add_(1)
            unbiased = variance * count / (count - 1).clamp(min=1)
            for name, news in (("running_mean", mean), ("running_var", unbiased)):
                running = norm.get_buffer(name)
                # Without a momentum they are the mean over all batches.
                share = (1 / batches).to(running.dtype) if norm.momentum is None else norm.momentum
                running.lerp_(news.to(running.dtype), share)
    scaled = (rows - mean) * (variance + norm.eps).rsqrt()
    return (scaled * norm.weight + norm.bias if norm.affine else scaled).to(features.dtype)
