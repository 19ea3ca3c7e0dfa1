"""Any loss over the batches of all processes at once: negatives come from the global batch, gradients are exact."""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import pad

from selhn.base.errors import SelhnError
from selhn.losses.base import AbstractLoss, TakesGiven
from selhn.losses.checks import ImageIds, check_image_ids


class AcrossRanks(nn.Module):
    """`loss.from_embeddings` of the embeddings of all ranks; made by `across_ranks`."""

    def __init__(self, loss: AbstractLoss, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.loss, self.group = loss, group

    def forward(
        self, image_emb: Float[Tensor, "B d"], text_emb: Float[Tensor, "B d"], image_ids: ImageIds = None
    ) -> Float[Tensor, ""]:
        """The loss of the global batch, the same number on every rank.

        `image_ids` must mean the same on all ranks: captions of one image that are on two ranks are not
        negatives of each other either. All ranks give them, or none does.
        """
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(self.group) == 1:
            return self.loss.from_embeddings(image_emb, text_emb, image_ids)
        sizes = _sizes(len(image_emb), image_emb.device, self.group)
        # Every rank computes the same loss, and so knows the gradient of all embeddings; it keeps that of its own.
        images, texts = (_Gather.apply(own, sizes, self.group) for own in (image_emb, text_emb))
        own = check_image_ids(image_ids, len(image_emb), image_emb.device)
        ids = None if own is None else _gather(own, sizes, self.group)
        return self.loss.from_embeddings(images, texts, ids)


def across_ranks(loss: AbstractLoss, group: dist.ProcessGroup | None = None) -> AcrossRanks:
    """A loss whose batch is that of all processes of `torch.distributed` together.

    Gradients are those of one process with the whole batch, if they are averaged over the ranks as
    `DistributedDataParallel` and FSDP do. Without `torch.distributed` it is the loss itself.

    Example:
        >>> loss = across_ranks(TripletSelHN())
        >>> value = loss(image_emb, text_emb)  # of this rank; image_ids= if captions share images
    """
    if not isinstance(loss, AbstractLoss):
        raise SelhnError(f"across_ranks takes a loss of selhn such as TripletSelHN(), got {loss!r}")
    if isinstance(loss, TakesGiven):
        name = type(loss).__name__
        raise SelhnError(f"{name} is given labels or scores of its own batch: it is not computed across ranks")
    if loss.reduction == "none":
        raise SelhnError("across ranks a loss is one number: give it reduction='mean' or 'sum'")
    return AcrossRanks(loss, group)


class _Gather(torch.autograd.Function):
    """All rows of all ranks. The gradient is that of the own rows times the number of ranks, which averaging undoes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: list[int], group: dist.ProcessGroup | None) -> Tensor:
        ctx.first, ctx.number = sum(sizes[: dist.get_rank(group)]), len(own)
        ctx.ranks = len(sizes)
        return _gather(own, sizes, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.first : ctx.first + ctx.number] * ctx.ranks, None, None


def _sizes(own: int, device: torch.device, group: dist.ProcessGroup | None) -> list[int]:
    """How many pairs each rank has: the last batch may be uneven."""
    found = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, torch.tensor([own], device=device), group)
    return torch.cat(found).tolist()


def _gather(own: Shaped[Tensor, "b *n"], sizes: list[int], group: dist.ProcessGroup | None) -> Shaped[Tensor, "B *n"]:
    """The rows of all ranks in their order."""
    most = max(sizes)
    padded = pad(own, (0, 0) * (own.ndim - 1) + (0, most - len(own))).contiguous()
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded, group)
    return torch.cat([rows[:size] for rows, size in zip(found, sizes)])
