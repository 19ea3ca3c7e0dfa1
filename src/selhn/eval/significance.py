"""Whether one system is better than another, or just lucky with the test images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.eval.metrics import DEFAULT_KS, check_ks, ranks
from selhn.eval.protocols import cut_folds
from selhn.eval.scoring import Array, Indices, checked_image_of_text, score_matrix

SAMPLES_AT_ONCE = 256
BOUNDS = torch.tensor([0.025, 0.975], dtype=torch.float64)
"""The quantiles that a 95 % interval lies between."""


@dataclass(frozen=True)
class Comparison:
    """The difference in RSUM, b minus a, with its 95 % interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float
    num_samples: int

    def __str__(self) -> str:
        return (
            f"RSUM differs by {self.difference:+.1f} (95 % interval {self.low:+.1f} to {self.high:+.1f}, "
            f"p = {self.p_value:.2g}, {self.num_samples} bootstrap samples)."
        )


def paired_bootstrap(
    scores_a: Array,
    scores_b: Array,
    image_of_text: Indices,
    *,
    num_samples: int = 2000,
    seed: int = 0,
    ks: Sequence[int] = DEFAULT_KS,
    ties: str = "pessimistic",
) -> Comparison:
    """Compare two systems by their scores (I, T) on the same test set.

    Images are drawn with replacement, each together with its texts and the same ones for both systems. They
    are drawn as queries only: the gallery stays complete, so the interval reflects the choice of queries, not
    of the gallery.
    """
    check_ks(ks)
    shape_a, shape_b = score_matrix(scores_a, "scores_a").shape, score_matrix(scores_b, "scores_b").shape
    if shape_a != shape_b:
        raise SelhnError(
            f"scores_a has shape {tuple(shape_a)} and scores_b {tuple(shape_b)}: "
            "score the same images and texts with both systems"
        )
    owner = checked_image_of_text(image_of_text, *shape_a).cpu()
    hits_a, hits_b = (hits(scores, owner, ks, ties) for scores in (scores_a, scores_b))
    # How many more of the `ks` b finds each query at: one number, so that gains and losses cancel exactly.
    i2t, t2i = ((b - a).sum(1, keepdim=True) for a, b in zip(hits_a, hits_b))
    difference, *drawn = drawn_means(i2t, t2i, owner, num_samples, seed).sum(1).tolist()
    differences = torch.tensor(drawn, dtype=torch.float64)
    low, high = differences.quantile(BOUNDS).tolist()
    # The observed data count as one more sample: p is never 0, which no finite number of samples can show.
    tail = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * tail / (1 + num_samples))
    return Comparison(difference, low, high, p_value, num_samples)


@dataclass(frozen=True)
class Intervals:
    """The 95 % intervals of the recalls of both directions, by k, and of RSUM; prints as a row below `Metrics`."""

    i2t: Mapping[int, tuple[float, float]]
    t2i: Mapping[int, tuple[float, float]]
    rsum: tuple[float, float]

    def __str__(self) -> str:
        i2t, t2i, (rsum,) = (
            [f"{low:.1f}-{high:.1f}" for low, high in own]
            for own in (self.i2t.values(), self.t2i.values(), [self.rsum])
        )
        return f"95 %: i2t {' '.join(i2t)} | t2i {' '.join(t2i)} | rsum {rsum}"


def recall_intervals(
    scores: Array,
    image_of_text: Indices,
    *,
    folds: int = 1,
    num_samples: int = 2000,
    seed: int = 0,
    ks: Sequence[int] = DEFAULT_KS,
    ties: str = "pessimistic",
) -> Intervals:
    """How far the recalls of scores (I, T) may be from those on other test images of the same kind.

    As in `paired_bootstrap`, images are drawn as queries, each with its texts, and the gallery stays complete. With
    `folds` they are drawn within each fold, and the recalls are means over the folds.
    """
    check_ks(ks)
    drawn = [
        drawn_means(*hits(part, owner, ks, ties), owner.cpu(), num_samples, seed + number)[1:]
        for number, (part, owner) in enumerate(cut_folds(scores, image_of_text, folds))
    ]
    recalls = torch.stack(drawn).mean(0)
    low, high = torch.cat([recalls, recalls.sum(1, keepdim=True)], 1).quantile(BOUNDS, dim=0).tolist()
    both = list(zip(low, high))
    return Intervals(dict(zip(ks, both)), dict(zip(ks, both[len(ks) :])), both[-1])


def hits(
    scores: Array, image_of_text: Indices, ks: Sequence[int], ties: str
) -> tuple[Float[Tensor, "I k"], Float[Tensor, "T k"]]:
    """1 where an image, or a text, as a query is found at k."""
    found = ranks(scores, image_of_text, ties=ties)
    i2t, t2i = (
        ((rank[:, None] >= 0) & (rank[:, None] < torch.tensor(list(ks)))).double()
        for rank in (found.i2t, found.t2i)
    )
    return i2t, t2i


def drawn_means(
    of_images: Float[Tensor, "I n"],
    of_texts: Float[Tensor, "T n"],
    owner: Int[Tensor, " T"],
    num_samples: int,
    seed: int,
) -> Float[Tensor, "samples twice_n"]:
    """Means over queries, times 100: of numbers of the images, then of the texts.

    The first row is that of the queries themselves. Each other row is a sample of as many images, drawn with
    replacement, each with its texts. Images without texts are no queries.
    """
    if num_samples < 1:
        raise SelhnError(f"num_samples is {num_samples}: draw at least one, 2000 for a stable interval")
    num_texts = owner.bincount(minlength=len(of_images)).double()
    summed = torch.zeros_like(of_images).index_add(0, owner, of_texts)
    per_image = torch.cat([of_images, summed, num_texts[:, None]], 1)[num_texts > 0]
    rng, num_images = np.random.default_rng(seed), len(per_image)
    evenly = np.full(num_images, 1 / num_images)
    sizes = [min(SAMPLES_AT_ONCE, num_samples - first) for first in range(0, num_samples, SAMPLES_AT_ONCE)]
    times = (torch.from_numpy(rng.multinomial(num_images, evenly, size=size)).double() for size in sizes)
    totals = torch.cat([per_image.sum(0, keepdim=True), *(one @ per_image for one in times)])
    images, texts, num_texts = totals.split([of_images.shape[1], of_texts.shape[1], 1], 1)
    return 100 * torch.cat([images / num_images, texts / num_texts], 1)
