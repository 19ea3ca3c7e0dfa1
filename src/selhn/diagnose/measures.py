"""Cheap numbers of a training step, from its scores and gradients, left on the device."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from selhn.kernels import AnchorStatistics, Terms, dense_statistics


@torch.no_grad()
def probe_scores(
    scores: Float[Tensor, "*K B B"],
    image_ids: Int[Tensor, " B"] | None = None,
    epsilon: float = 0.01,
    anchors: AnchorStatistics | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """How well the positives of a batch are told from their hardest negatives.

    `delta_s` is equation 10 of the SelHN paper, the mean over anchors that have a negative of |s_n - s_p|; `separated`
    the share of them above `epsilon`, where SelHN mines; `spread` the standard deviation of all scores, which is 0
    when the embeddings have fallen together. `anchors` are the statistics of the scores if they are known already.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if anchors is None:
        anchors = dense_statistics(scores, image_ids, ("hardest",), Terms())
    has_negative = (anchors.num_negatives > 0).expand_as(anchors["hardest"])
    count = has_negative.sum().clamp(min=1)
    gap = torch.where(has_negative, (anchors["hardest"] - anchors.positive).abs(), 0)
    return {
        "delta_s": gap.sum() / count,
        "separated": ((gap > epsilon) & has_negative).sum() / count,
        "s_p": anchors.positive.mean(),
        "s_n": torch.where(has_negative, anchors["hardest"], 0).sum() / count,
        "spread": scores.std(correction=0),
    }


Norms: TypeAlias = Mapping[nn.Parameter, Float[Tensor, ""]]
"""The norm of every gradient there is."""


@torch.no_grad()
def parameter_norms(parameters: Iterable[nn.Parameter]) -> Norms:
    """The norm of the gradient of every parameter that has one, in one pass over them."""
    grads = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    wide = torch.float64 if any(grad.dtype == torch.float64 for grad in grads.values()) else torch.float32
    return dict(zip(grads, torch._foreach_norm(list(grads.values()), dtype=wide))) if grads else {}


@torch.no_grad()
def gradient_norms(watched: Mapping[str, nn.Module], norms: Norms | None = None) -> dict[str, Float[Tensor, ""]]:
    """The norm of the gradient over all weights of each module, as `grad_NAME`; `norms` if they are known."""
    if norms is None:
        norms = parameter_norms(parameter for module in watched.values() for parameter in module.parameters())
    return {
        f"grad_{name}": total_norm([norms[parameter] for parameter in module.parameters() if parameter in norms])
        for name, module in watched.items()
    }


def total_norm(norms: Sequence[Float[Tensor, ""]]) -> Float[Tensor, ""]:
    """The norm of a vector from the norms of its parts."""
    return torch.linalg.vector_norm(torch.stack(list(norms))) if norms else torch.zeros(())
