"""The statistics of a batch in whichever form its scores come: the one place that chooses how they are computed.

A matrix on a CPU and embeddings anywhere go through blocks of rows (`rows.py`); embeddings that the kernels for
Hopper GPUs can read, through these (`row_statistics.py`); a small matrix, and one on a GPU or in a compiled
program, through plain torch, which the recorded step or the compiler makes fast. Processes that train together
compare their own images with all texts, and their own texts with all images.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from selhn.base.types import Products
from selhn.losses.row_statistics import plain_statistics, row_statistics
from selhn.losses.rows import Asked, Plan
from selhn.losses.statistics import STATISTICS, AnchorStatistics, Needs, label_images, with_constants

FEW = 2**13
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
    of_pairs = "positive_mean" in needs
    labels, num_negatives = label_images(image_ids, scores.shape[-1], scores.device)
    asked = tuple(one for one in with_constants(needs).items() if one[0] != "positive_mean")
    masked = labels if mask_same_image else None
    mean = None
    if isinstance(scores, Products):
        dtype = scores.images.dtype
        if of_pairs or scores.shares is not None:
            # Near collapse the gradients of several statistics, or of several processes, nearly cancel: they are
            # added before they are rounded.
            scores = scores.to(torch.promote_types(dtype, torch.float32))
        positive, values = _of_products(scores, asked, masked, dtype)
        if of_pairs:
            mean = _positive_mean_of_products(scores, labels, num_negatives)
    else:
        positive, values = _of_matrix(scores, asked, masked)
        if of_pairs:
            mean = _positive_mean(scores, positive, labels, num_negatives)
    found = {name: value for (name, _), value in zip(asked, values)}
    found |= {} if mean is None else {"positive_mean": mean}
    return AnchorStatistics(positive.unsqueeze(-2), num_negatives, found)


def _of_matrix(
    scores: Float[Tensor, "*K B B"], asked: Asked, labels: Int[Tensor, " B"] | None
) -> tuple[Float[Tensor, "*K B"], list[Float[Tensor, "*K 2 B"]]]:
    """Positives and statistics; of several matrices one after the other."""
    if in_plain_torch(scores):
        positive, values = plain_statistics(scores, asked, (labels, labels))
        return positive, [torch.stack(both, dim=-2) for both in values]
    if scores.ndim == 2:
        return _both_sides(asked, labels, scores)
    each = [_both_sides(asked, labels, matrix) for matrix in scores.flatten(0, -3)]
    leading = scores.shape[:-2]
    positive = torch.stack([one for one, _ in each]).unflatten(0, leading)
    return positive, [torch.stack(one).unflatten(0, leading) for one in zip(*(values for _, values in each))]


def in_plain_torch(scores: Tensor) -> bool:
    """Whether a matrix is left to autograd: a small one, on a GPU, in a compiled program, and under `torch.func`."""
    if scores.device.type != "cpu" or torch.compiler.is_compiling() or scores.shape[-1] ** 2 <= FEW:
        return True
    return torch._C._are_functorch_transforms_active()


def _of_products(
    products: Products, asked: Asked, labels: Int[Tensor, " B"] | None, dtype: torch.dtype
) -> tuple[Float[Tensor, " B"], list[Float[Tensor, "2 B"]]]:
    """Positives and statistics of embeddings, multiplied as `dtype`; of all processes if there are several."""
    images, texts, shares = products.images, products.texts, products.shares
    if shares is None:
        return _both_sides(asked, labels, images, texts, dtype=dtype)
    own, sides = shares.rows, []
    plan = Plan(asked, both=False, first=own.start, dtype=dtype)
    for anchors, others in ((images, texts), (texts, images)):
        every = shares.gathered(others, same=False)
        mine = None if labels is None else labels[own]
        sides.append(row_statistics(plan, mine, labels, anchors, every))
    # The loss is the same on all ranks, from the statistics of all anchors.
    (positive, *of_images), (_, *of_texts) = sides
    rows = torch.cat([positive[None], *of_images, *of_texts])
    positive, *values = shares.gathered(rows.mT, same=True).unbind(1)
    return positive, [torch.stack(both) for both in zip(values[: len(asked)], values[len(asked) :])]


def _both_sides(
    asked: Asked, labels: Int[Tensor, " B"] | None, *factors: Tensor, dtype: torch.dtype | None = None
) -> tuple[Float[Tensor, " B"], list[Float[Tensor, "2 B"]]]:
    """Positives and statistics of images and of texts: in one pass, but for reductions of whole rows."""
    at_once = tuple(one for one in asked if not callable(STATISTICS[one[0]].reduction))
    apart = tuple(one for one in asked if one not in at_once)
    found: dict[str, Tensor] = {}
    positive = None
    if at_once or not apart:
        plan = Plan(at_once, both=True, dtype=dtype)
        positive, *values = row_statistics(plan, labels, labels, *factors)
        found.update(zip([name for name, _ in at_once], values))
    if apart:
        plan = Plan(apart, both=False, dtype=dtype)
        turned = factors[::-1] if len(factors) == 2 else (factors[0].mT,)
        positive, *of_images = row_statistics(plan, labels, labels, *factors)
        _, *of_texts = row_statistics(plan, labels, labels, *turned)
        found.update((name, torch.cat(both)) for (name, _), *both in zip(apart, of_images, of_texts))
    assert positive is not None
    return positive, [found[name] for name, _ in asked]


def _positive_mean(
    scores: Float[Tensor, "*K B B"],
    positive: Float[Tensor, "*K B"],
    labels: Int[Tensor, " B"] | None,
    num_negatives: Int[Tensor, " B"],
) -> Float[Tensor, "*K 2 B"]:
    """The mean score over all pairs of an anchor's image."""
    if labels is None:
        return torch.stack([positive, positive], dim=-2)
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
