"""Evaluation protocols of the image-text matching literature, on top of one score matrix."""

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data.splits import COCO_FOLDS, require_folds
from selhn.eval.metrics import DEFAULT_KS, Metrics, recall
from selhn.eval.scoring import Array, Indices, checked_image_of_text, score_matrix


def folds(
    scores: Array,
    image_of_text: Indices,
    folds: int = COCO_FOLDS,
    *,
    ks: Sequence[int] = DEFAULT_KS,
    ties: str = "pessimistic",
    extended: bool = False,
) -> list[Metrics]:
    """Metrics of consecutive blocks of images with their texts, cut from one matrix (I, T).

    COCO 1K is `Metrics.mean(folds(scores_of_the_5000_images, image_of_text))`.
    """
    parts = cut_folds(scores, image_of_text, folds)
    return [recall(part, owner, ks=ks, ties=ties, extended=extended) for part, owner in parts]


def cut_folds(
    scores: Array, image_of_text: Indices, folds: int
) -> Iterator[tuple[Float[Tensor, "F S"], Int[Tensor, " S"]]]:
    """The scores of each fold, and the image of each of its texts, counted within the fold."""
    matrix = score_matrix(scores)
    num_images, num_texts = matrix.shape
    owner = checked_image_of_text(image_of_text, num_images, num_texts).to(matrix.device)
    require_folds(num_images, folds)
    size = num_images // folds
    for first in range(0, num_images, size):
        texts = (owner // size == first // size).nonzero().squeeze(1)
        if len(texts) == 0:
            raise SelhnError(
                f"images {first} to {first + size - 1} make a fold without any text: "
                "use fewer folds, or leave these images out"
            )
        yield matrix[first : first + size].index_select(1, texts), owner[texts] - first


def ensemble(*score_matrices: Array, weights: Sequence[float] | None = None) -> Float[Tensor, "I T"]:
    """The (weighted) average of score matrices (I, T) of several models over the same images and texts."""
    if not score_matrices:
        raise SelhnError("there is nothing to average: give at least one score matrix")
    matrices = [score_matrix(scores, f"score matrix {n}") for n, scores in enumerate(score_matrices)]
    for n, matrix in enumerate(matrices):
        if matrix.shape != matrices[0].shape or matrix.device != matrices[0].device:
            raise SelhnError(
                f"score matrix {n} is {tuple(matrix.shape)} on {matrix.device} but the first is "
                f"{tuple(matrices[0].shape)} on {matrices[0].device}: "
                "score the same images and texts, on one device"
            )
    if weights is None:
        weights = [1.0] * len(matrices)
    if len(weights) != len(matrices) or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise SelhnError(
            f"weights is {tuple(weights)}: give {len(matrices)} numbers, one for each matrix, "
            "none negative and not all zero"
        )
    dtype = reduce(torch.promote_types, (matrix.dtype for matrix in matrices), torch.float32)
    total = torch.zeros(matrices[0].shape, dtype=dtype, device=matrices[0].device)
    for matrix, weight in zip(matrices, weights):
        total.add_(matrix, alpha=weight / sum(weights))
    return total
