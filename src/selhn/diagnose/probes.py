"""What a training step says about itself: cheap numbers from the scores and the gradients, left on the device."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from selhn.kernels import dense_statistics


@torch.no_grad()
def probe_scores(
    scores: Float[Tensor, "*K B B"], image_ids: Int[Tensor, " B"] | None = None, epsilon: float = 0.01
) -> dict[str, Float[Tensor, ""]]:
    """How well the positives of a batch are told from their hardest negatives.

    `delta_s` is equation 10 of the SelHN paper, the mean over anchors that have a negative of |s_n - s_p|; `separated`
    the share of them above `epsilon`, where SelHN mines; `spread` the standard deviation of all scores, which is 0
    when the embeddings have fallen together.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    anchors = dense_statistics(scores, image_ids, margin=0.0, needs=("hardest",))
    has_negative = (anchors.num_negatives > 0).expand_as(anchors.hardest)
    count = has_negative.sum().clamp(min=1)
    gap = torch.where(has_negative, (anchors.hardest - anchors.positive).abs(), 0)
    return {
        "delta_s": gap.sum() / count,
        "separated": ((gap > epsilon) & has_negative).sum() / count,
        "s_p": anchors.positive.mean(),
        "s_n": torch.where(has_negative, anchors.hardest, 0).sum() / count,
        "spread": scores.std(correction=0),
    }


@torch.no_grad()
def gradient_norms(watched: Mapping[str, nn.Module]) -> dict[str, Float[Tensor, ""]]:
    """The norm of the gradient over all weights of each module, as `grad_NAME`."""
    return {f"grad_{name}": _norm(module.parameters()) for name, module in watched.items()}


def _norm(parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)).float())
