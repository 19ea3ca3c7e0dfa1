"""The statistics of a batch in whichever form its scores come: the one place that chooses how they are computed.

A matrix on a CPU and embeddings anywhere go through blocks of rows (`rows.py`); embeddings that the kernels for
Hopper GPUs can read, through these (`row_statistics.py`); small batches, and a matrix on a GPU or in a compiled
program, through plain torch, which the recorded step or the compiler makes fast. Processes that train together
compare their own images with all texts, and their own texts with all images.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from selhn.base.types import Products
from selhn.losses.checks import can_look
from selhn.losses.row_statistics import row_statistics
from selhn.losses.rows import Plan
from selhn.losses.statistics import (
    STATISTICS,
    AnchorStatistics,
    Asked,
    Needs,
    Values,
    label_images,
    plain_statistics,
    with_constants,
)

FEW = 2**16
"""So few scores take no longer in plain torch."""


def anchor_statistics(
    scores: Float[Tensor, "*K B B"] | Products,
    image_ids: Int[Tensor, " B"] | None,
    needs: Needs,
    mask_same_image: bool = True,
) -> AnchorStatistics:
    """What a loss `needs` to know about all anchors of a batch.

    `mask_same_image` is whether other pairs of an anchor's image are left out of its candidates.
    """
    asked = with_constants(needs)
    of_pairs = asked.pop("positive_mean", None) is not None
    labels, num_negatives = label_images(image_ids, scores.shape[-1], scores.device)
    masked = labels if mask_same_image else None
    if isinstance(scores, Products) and scores.shares is None and can_look(scores.images):
        scores = _matrix(scores) if scores.shape.numel() <= FEW else scores
    mean = None
    if isinstance(scores, Products):
        dtype = scores.images.dtype
        if of_pairs or scores.shares is not None:
            # Near collapse the gradients of several statistics, or of several processes, nearly cancel: they are
            # added before they are rounded.
            scores = scores.to(torch.promote_types(dtype, torch.float32))
        if scores.shares is None:
            positive, values = _both_sides(asked, masked, scores.images, scores.texts, dtype=dtype)
        else:
            positive, values = _of_all_ranks(asked, masked, scores, dtype)
        if of_pairs:
            mean = _positive_mean_of_products(scores, labels, num_negatives)
    else:
        if in_plain_torch(scores):
            positive, values = plain_statistics(scores, asked, (masked, masked))
        else:
            positive, values = _both_sides(asked, masked, scores)
        if of_pairs:
            mean = _positive_mean(scores, labels, num_negatives)
    found = values if mean is None else values | {"positive_mean": mean}
    return AnchorStatistics(positive.unsqueeze(-2), num_negatives, found)


def _matrix(products: Products) -> Float[Tensor, "B B"]:
    """The scores; half precision is multiplied exactly."""
    wide = products.to(torch.promote_types(products.images.dtype, torch.float32))
    with torch.autocast(products.device.type, enabled=False):
        return wide.images @ wide.texts.mT


def in_plain_torch(scores: Tensor) -> bool:
    """Whether a matrix is left to autograd.

    So are small or several ones, on a GPU, in a compiled program, and under `torch.func`.
    """
    if scores.ndim > 2 or scores.numel() <= FEW or not can_look(scores):
        return True
    return torch._C._are_functorch_transforms_active()


def _of_all_ranks(
    asked: Asked, labels: Int[Tensor, " B"] | None, products: Products, dtype: torch.dtype
) -> tuple[Float[Tensor, " B"], Values]:
    """Positives and statistics of the embeddings of all processes, multiplied as `dtype`."""
    shares, sides = products.shares, []
    assert shares is not None
    plan = Plan(asked, both=False, first=shares.rows.start, dtype=dtype)
    for anchors, others in ((products.images, products.texts), (products.texts, products.images)):
        every = shares.gathered(others, same=False)
        own = None if labels is None else labels[shares.rows]
        sides.append(row_statistics(plan, (own, labels), anchors, every))
    # The loss is the same on all ranks, from the statistics of all anchors.
    (positive, of_images), (_, of_texts) = sides
    rows = torch.cat([positive[None], *of_images.values(), *of_texts.values()])
    positive, *values = shares.gathered(rows.mT, same=True).unbind(1)
    both = zip(values[: len(asked)], values[len(asked) :])
    return positive, dict(zip(asked, map(torch.stack, both)))


def _both_sides(
    asked: Asked, labels: Int[Tensor, " B"] | None, *factors: Tensor, dtype: torch.dtype | None = None
) -> tuple[Float[Tensor, " B"], Values]:
    """Positives and statistics of images and of texts: in one pass, but for reductions of whole rows."""
    apart = {name: of for name, of in asked.items() if callable(STATISTICS[name].reduction)}
    at_once = {name: of for name, of in asked.items() if name not in apart}
    positive, found = row_statistics(Plan(at_once, both=True, dtype=dtype), (labels, labels), *factors)
    if apart:
        plan = Plan(apart, both=False, dtype=dtype)
        turned = factors[::-1] if len(factors) == 2 else (factors[0].mT,)
        _, of_images = row_statistics(plan, (labels, labels), *factors)
        _, of_texts = row_statistics(plan, (labels, labels), *turned)
        found |= {name: torch.cat([of_images[name], of_texts[name]]) for name in apart}
    return positive, found


def _positive_mean(
    scores: Float[Tensor, "*K B B"], labels: Int[Tensor, " B"] | None, num_negatives: Int[Tensor, " B"]
) -> Float[Tensor, "*K 2 B"]:
    """The mean score over all pairs of an anchor's image."""
    if labels is None:
        labels = torch.arange(len(num_negatives), device=scores.device)
    positives = scores.masked_fill(labels[:, None] != labels, 0.0)
    sums = torch.stack([positives.sum(dim=-1), positives.sum(dim=-2)], dim=-2)
    return sums / (len(labels) - num_negatives)


def _positive_mean_of_products(
    products: Products, labels: Int[Tensor, " B"] | None, num_negatives: Int[Tensor, " B"]
) -> Float[Tensor, "2 B"]:
    """The same from mean embeddings, in O(B d)."""
    images, texts = products.images, products.texts
    if products.shares is not None:
        images, texts = (products.shares.gathered(emb, same=True) for emb in (images, texts))
    labels = torch.arange(len(images), device=images.device) if labels is None else labels
    in_order, order = labels.long().sort(stable=True)
    # A label is where the pairs of its image begin in this order, and so where their bag of embeddings does.
    # Of the bags that begin there, all but the last are empty.
    last = labels + len(labels) - num_negatives - 1
    # Not index_add_: on CUDA it adds in any order.
    mean_image, mean_text = (
        embedding_bag(order, emb, in_order, mode="mean")[last] for emb in (images, texts)
    )
    return torch.stack([(images * mean_text).sum(dim=1), (mean_image * texts).sum(dim=1)])
