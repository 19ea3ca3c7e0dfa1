"""Compute the rank of each query from scores, tile by tile.

Scores come from a matrix or from embeddings; nothing as large as the whole matrix is allocated here.
The two directions are one computation: a tile has queries as rows and the whole gallery as columns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import at_least_float32

Array: TypeAlias = Tensor | npt.NDArray[Any]
Indices: TypeAlias = Array | Sequence[int]

# More is not faster on a CPU, less is slower on a GPU.
DEFAULT_BYTE_BUDGET = 256 * 2**20
# A float32 score in a tile, whether it beats the true one, and the int64 in which torch sums that.
BYTES_PER_SCORE = 13


class QueryTile(NamedTuple):
    """Queries against the whole gallery, and the P true pairs among them as (row, column)."""

    scores: Float[Tensor, "Q G"]
    row: Int[Tensor, " P"]
    column: Int[Tensor, " P"]


@dataclass(frozen=True)
class AllPairs:
    """Scores as a function of (slice of images, slice of texts), and the P true pairs of image and text."""

    num_images: int
    num_texts: int
    scores: Callable[[slice, slice], Tensor]
    image: Int[Tensor, " P"]
    text: Int[Tensor, " P"]

    @classmethod
    def from_matrix(cls, scores: Array, image_of_text: Indices | None, relevance: Array | None) -> "AllPairs":
        matrix = score_matrix(scores)
        num_images, num_texts = matrix.shape
        image, text = true_pairs(num_images, num_texts, image_of_text, relevance)

        def cut(images: slice, texts: slice) -> Tensor:
            return at_least_float32(matrix[images, texts])

        return cls(num_images, num_texts, cut, image.to(matrix.device), text.to(matrix.device))

    @classmethod
    def from_embeddings(
        cls, image_emb: Array, text_emb: Array, image_of_text: Indices | None, relevance: Array | None
    ) -> "AllPairs":
        """Products of embeddings (I, d) and (T, d), computed tile by tile."""
        all_images = checked_embeddings(image_emb, "image_emb")
        all_texts = checked_embeddings(text_emb, "text_emb")
        if all_images.shape[1] != all_texts.shape[1]:
            raise SelhnError(
                f"image_emb is {all_images.shape[1]} wide and text_emb {all_texts.shape[1]}: "
                "give embeddings of one model, which have the same width"
            )
        device = all_images.device
        if all_texts.device != device:
            raise SelhnError(f"image_emb is on {device}, text_emb on {all_texts.device}: use one device")
        refuse_nan(all_images, "image_emb")
        refuse_nan(all_texts, "text_emb")
        image, text = true_pairs(len(all_images), len(all_texts), image_of_text, relevance)
        dtype = torch.promote_types(all_images.dtype, all_texts.dtype)
        all_images, all_texts = all_images.to(dtype), all_texts.to(dtype)

        def multiply(images: slice, texts: slice) -> Tensor:
            # A caller's autocast would round the product to half precision, where different scores tie.
            with torch.autocast(device.type, enabled=False):
                return all_images[images] @ all_texts[texts].T

        return cls(len(all_images), len(all_texts), multiply, image.to(device), text.to(device))

    def tiles(self, direction: Literal["i2t", "t2i"], byte_budget: int) -> Iterator[tuple[slice, QueryTile]]:
        """All queries of one direction, as many at a time as fit `byte_budget`, but at least one."""
        from_images = direction == "i2t"
        images, texts = (self.num_images, self.image), (self.num_texts, self.text)
        (num_queries, query), (num_gallery, item) = (images, texts) if from_images else (texts, images)
        step = max(1, byte_budget // (BYTES_PER_SCORE * num_gallery))
        everything = slice(None)
        for first in range(0, num_queries, step):
            block = slice(first, first + step)
            scores = self.scores(block, everything) if from_images else self.scores(everything, block).T
            if from_images:  # The other direction sees the same scores again.
                refuse_nan(scores, "scores", first)
            here = (query >= first) & (query < first + step)
            yield block, QueryTile(scores, query[here] - first, item[here])


def rank_queries(tile: QueryTile, ties: str) -> Int[Tensor, " Q"]:
    """How many wrong items beat the best true one, by counting instead of sorting; -1 if none is true."""
    scores, row, column = tile
    true_scores = scores[row, column]
    best = scores.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, true_scores, "amax")
    beats = torch.ge if ties == "pessimistic" else torch.gt
    num_better = beats(scores, best[:, None]).sum(1)
    # The best true item ties with itself, and perhaps with other true items: those are not wrong.
    num_better -= row[beats(true_scores, best[row])].bincount(minlength=len(scores))
    return num_better.masked_fill(row.bincount(minlength=len(scores)) == 0, -1)


def precision_queries(tile: QueryTile, ties: str) -> Float[Tensor, "Q 2"]:
    """R-Precision and mAP@R of queries with R true items each (Chun et al., ECCV Caption, ECCV 2022)."""
    scores, row, column = tile
    num_true = row.bincount(minlength=len(scores))[:, None]
    depth = max(1, int(num_true.max()))
    only_true = torch.full_like(scores, -torch.inf)
    only_true[row, column] = scores[row, column]
    only_wrong = scores.clone()
    only_wrong[row, column] = -torch.inf
    best_true = only_true.topk(depth).values
    # With more than `depth` wrong items ahead, a true one is past the first R places and does not count.
    best_wrong = only_wrong.topk(depth).values.flip(1)
    num_ahead = depth - torch.searchsorted(best_wrong, best_true, right=ties == "optimistic")
    # A true score of -inf ties with the blanks left by the other true items.
    num_ahead = num_ahead.minimum(scores.shape[1] - num_true)
    place_among_true = torch.arange(depth, device=scores.device)
    place = place_among_true + num_ahead
    counts = (place < num_true).double()
    precision = (place_among_true + 1).double() / (place + 1)
    return torch.stack([counts.sum(1), (counts * precision).sum(1)], 1) / num_true.clamp(min=1)


def true_pairs(
    num_images: int, num_texts: int, image_of_text: Indices | None, relevance: Array | None
) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"]]:
    """Image and text of every true pair, from either form of ground truth."""
    if image_of_text is not None and relevance is None:
        image = checked_image_of_text(image_of_text, num_images, num_texts)
        return image, torch.arange(num_texts, device=image.device)
    if relevance is None or image_of_text is not None:
        raise SelhnError(
            "the ground truth must have one form: give either image_of_text (the image of each text) "
            "or relevance (boolean, images x texts)"
        )
    truth = as_tensor(relevance)
    if truth.dtype != torch.bool:
        raise SelhnError(f"relevance holds {truth.dtype}: make it boolean, for instance with relevance > 0")
    if tuple(truth.shape) != (num_images, num_texts):
        raise SelhnError(
            f"relevance has shape {tuple(truth.shape)} but the scores ({num_images}, {num_texts}): "
            "both need one row for each image and one column for each text"
        )
    image, text = truth.nonzero(as_tuple=True)
    if len(image) == 0:
        raise SelhnError("relevance is False everywhere, so there is no query: mark at least one true pair")
    return image, text


def as_tensor(array: Indices) -> Tensor:
    """A tensor that shares the memory if possible."""
    if isinstance(array, Tensor):
        return array.detach()
    # torch warns about memory it may not write to, such as a read-only memory map.
    return torch.from_numpy(np.require(array, requirements=["W"]))


def score_matrix(scores: Array, name: str = "scores") -> Float[Tensor, "I T"]:
    """The matrix as a tensor, or an error that says what is wrong with it."""
    matrix = as_tensor(scores)
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise SelhnError(
            f"{name} has shape {tuple(matrix.shape)}: give a matrix with one row for each image "
            "and one column for each text, at least one of each"
        )
    if not matrix.is_floating_point():
        raise SelhnError(f"{name} holds {matrix.dtype}: convert it to floating point, such as float32")
    return matrix


def checked_image_of_text(image_of_text: Indices, num_images: int, num_texts: int) -> Int[Tensor, " T"]:
    """The image of each text as int64, or an error that says what is wrong with it."""
    owner = as_tensor(image_of_text)
    if tuple(owner.shape) != (num_texts,):
        hint = " (are the scores transposed? rows are images)" if owner.shape[:1] == (num_images,) else ""
        raise SelhnError(
            f"image_of_text has shape {tuple(owner.shape)} but there are {num_texts} texts: "
            f"give the index of one image for each text{hint}"
        )
    if owner.is_floating_point() or owner.is_complex() or owner.dtype == torch.bool:
        raise SelhnError(f"image_of_text holds {owner.dtype}: give integers, the index of each text's image")
    owner = owner.long()
    outside = ((owner < 0) | (owner >= num_images)).nonzero()
    if len(outside):
        text = int(outside[0])
        raise SelhnError(
            f"image_of_text[{text}] is {int(owner[text])} but there are {num_images} images: "
            f"give indices from 0 to {num_images - 1}"
        )
    return owner


def checked_embeddings(embeddings: Array, name: str) -> Float[Tensor, "n d"]:
    """The embeddings in at least float32, or an error that says what is wrong with them."""
    rows = as_tensor(embeddings)
    if rows.ndim != 2 or rows.numel() == 0 or not rows.is_floating_point():
        raise SelhnError(
            f"{name} has shape {tuple(rows.shape)} and holds {rows.dtype}: "
            "give a floating point matrix with one row for each item, at least one"
        )
    return at_least_float32(rows)


def refuse_nan(matrix: Float[Tensor, "n m"], name: str, first_row: int = 0) -> None:
    """Name the first NaN: nothing compares as better than it, so it would silently count as found."""
    bad_rows = matrix.amax(1).isnan().nonzero()  # amax keeps a NaN, and costs a tenth of isnan on the matrix.
    if len(bad_rows):
        row = int(bad_rows[0])
        column = int(matrix[row].isnan().nonzero()[0])
        raise SelhnError(
            f"{name}[{first_row + row}, {column}] is NaN, which has no rank: "
            "find where the model makes it, or mask it with -inf"
        )
