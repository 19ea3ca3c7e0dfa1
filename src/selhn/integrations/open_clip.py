"""open_clip: a loss of selhn as a drop-in replacement for its `ClipLoss`."""

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError, needs
from selhn.integrations.pairs import PairLoss
from selhn.losses import AbstractLoss

with needs("open_clip_torch"):
    from open_clip.loss import ClipLoss


class ClipPairLoss(ClipLoss):
    """`ClipLoss` with a loss of selhn, which must be the keyword `loss`.

    Negatives come from all processes, always with exact gradients: what `gather_with_grad=True` is for, without which
    `ClipLoss` has smaller ones. `local_loss` saves memory there; here no B x B matrix is made. So these flags, and
    `cache_labels`, are accepted and change nothing.

    The scores are cosines: margins and temperatures are in the settings of the loss. `logit_scale` receives a
    gradient of 0, so that `DistributedDataParallel` finds all parameters used.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        loss: AbstractLoss | str = "selhn",
    ):
        super().__init__(local_loss, gather_with_grad, cache_labels, rank, world_size, use_horovod)
        if use_horovod:
            raise SelhnError(
                "use_horovod: negatives come from torch.distributed: start the program with torchrun"
            )
        self.pair_loss = PairLoss(loss)
        self.pair_loss.require_trained(())  # open_clip's optimiser has the parameters of the model only

    def forward(
        self,
        image_features: Float[Tensor, "B d"],
        text_features: Float[Tensor, "B d"],
        logit_scale: Float[Tensor, "*one"],
        logit_bias: Float[Tensor, "*one"] | None = None,
        output_dict: bool = False,
    ) -> Float[Tensor, ""] | dict[str, Tensor]:
        """The loss of the pairs of all processes."""
        running = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if running != self.world_size:
            raise SelhnError(
                f"world_size is {self.world_size} and torch.distributed has {running} processes: pass what "
                "open_clip's training program passes to its losses (args.world_size)"
            )
        value = self.pair_loss(image_features, text_features)
        for unused in (logit_scale, logit_bias):
            value = value if unused is None else value + 0.0 * unused.sum()
        return {"contrastive_loss": value} if output_dict else value
