"""Any loss over the batches of all processes: negatives of the global batch, exact gradients."""

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.ranks import Processes, Shares
from selhn.base.types import Products
from selhn.losses.base import AbstractLoss, as_ours
from selhn.losses.checks import ImageIds, as_image_ids


class AcrossRanks(nn.Module):
    """A loss over the embeddings of all ranks; made by `across_ranks`."""

    def __init__(self, loss: AbstractLoss, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.loss, self.group = loss, group

    def from_embeddings(
        self, image_emb: Float[Tensor, "B d"], text_emb: Float[Tensor, "B d"], image_ids: ImageIds = None
    ) -> Float[Tensor, ""]:
        """The loss of the global batch, the same number on every rank; a call of the module is the same.

        `image_ids` must mean the same on all ranks: captions of one image that are on two ranks are not
        negatives of each other either. All ranks give them, or none.
        """
        ranks = Processes.of(self.group)
        if ranks is None:
            return self.loss.from_embeddings(image_emb, text_emb, image_ids)
        own, device = as_image_ids(image_ids, len(image_emb)), image_emb.device
        sizes, has_ids = ranks.all(
            torch.tensor([len(image_emb), int(own is not None)], device=device)
        ).T.tolist()
        if len(set(has_ids)) > 1:
            raise SelhnError(
                "some ranks gave image_ids and others did not: give image_ids on all ranks, or on none"
            )
        shares = Shares(ranks, sizes)
        ids = None if own is None else shares.gather(own.to(device, torch.int64))
        return self.loss.reduce(self.loss.statistics(Products(image_emb, text_emb, shares), ids))

    forward = from_embeddings


def across_ranks(loss: AbstractLoss, group: dist.ProcessGroup | None = None) -> AcrossRanks:
    """A loss over the global batch of all `torch.distributed` processes.

    Gradients are those of one process with the whole batch, if they are averaged over the ranks as
    `DistributedDataParallel` and FSDP do. Without `torch.distributed` it is the loss itself. A process
    compares its own images with all texts, and its own texts with all images: it holds O(B d) numbers and never
    a B x B matrix.

    Example:
        >>> loss = across_ranks(TripletSelHN())
        >>> value = loss.from_embeddings(image_emb, text_emb)  # of this rank; image_ids= too if they repeat
    """
    if as_ours(loss) is None:
        raise SelhnError(f"across_ranks takes a loss of selhn such as TripletSelHN(), got {loss!r}")
    if loss.takes_given:
        name = type(loss).__name__
        raise SelhnError(
            f"{name} takes labels or scores of its own batch: it cannot be computed across ranks"
        )
    if loss.reduction == "none":
        raise SelhnError("across ranks a loss must be one number: give it reduction='mean' or 'sum'")
    return AcrossRanks(loss, group)
