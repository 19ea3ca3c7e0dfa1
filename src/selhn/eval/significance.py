"""Whether one system is better than another, or just lucky with the test images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.eval.metrics import DEFAULT_KS, check_ks, ranks
from selhn.eval.protocols import in_blocks
from selhn.eval.scoring import Array, Indices, checked_image_of_text, checked_scores

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
    if num_samples < 1:
        raise SelhnError(f"num_samples is {num_samples}: draw at least one, 2000 for a stable interval")
    shape_a, shape_b = checked_scores(scores_a, "scores_a").shape, checked_scores(scores_b, "scores_b").shape
    if shape_a != shape_b:
        raise SelhnError(
            f"scores_a has shape {tuple(shape_a)} and scores_b {tuple(shape_b)}: "
            "score the same images and texts with both systems"
        )
    owner = checked_image_of_text(image_of_text, *shape_a).cpu()
    gain_i2t, gain_t2i = gains(scores_a, scores_b, image_of_text, ks, ties)
    num_texts = owner.bincount(minlength=shape_a[0])
    per_image = torch.stack([gain_i2t, owner.bincount(gain_t2i, shape_a[0]), num_texts], 1)
    per_image = per_image[num_texts > 0]

    num_images = len(per_image)
    differences = rsum_difference(drawn_totals(per_image, num_samples, seed), num_images)
    low, high = differences.quantile(BOUNDS).tolist()
    # The observed data count as one more sample: p is never 0, which no finite number of samples can show.
    tail = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * tail / (1 + num_samples))
    difference = float(rsum_difference(per_image.sum(0, keepdim=True), num_images))
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
        _drawn_recalls(part, owner, num_samples, seed + number, ks, ties)
        for number, (part, owner) in enumerate(in_blocks(scores, image_of_text, folds))
    ]
    recalls = torch.stack(drawn).mean(0)
    low, high = torch.cat([recalls, recalls.sum(1, keepdim=True)], 1).quantile(BOUNDS, dim=0).tolist()
    both = list(zip(low, high))
    return Intervals(dict(zip(ks, both)), dict(zip(ks, both[len(ks) :])), both[-1])


def _drawn_recalls(
    scores: Float[Tensor, "I T"],
    owner: Int[Tensor, " T"],
    num_samples: int,
    seed: int,
    ks: Sequence[int],
    ties: str,
) -> Float[Tensor, "S twice_k"]:
    """The recalls of every sample: image to text at each of `ks`, then text to image."""
    found, owner = ranks(scores, owner, ties=ties), owner.cpu()
    of_images, of_texts = hits(found.i2t, ks), hits(found.t2i, ks)
    num_texts = owner.bincount(minlength=len(scores)).double()
    summed = torch.zeros_like(of_images).index_add(0, owner, of_texts)
    queries = num_texts > 0
    per_image = torch.cat([of_images, summed, num_texts[:, None]], 1)[queries]
    totals = drawn_totals(per_image, num_samples, seed)
    of_images, of_texts, num_texts = totals.split([len(ks), len(ks), 1], 1)
    return 100 * torch.cat([of_images / len(per_image), of_texts / num_texts], 1)


def hits(rank: Int[Tensor, " Q"], ks: Sequence[int]) -> Float[Tensor, "Q k"]:
    """1 where a query is found at k."""
    return ((rank[:, None] >= 0) & (rank[:, None] < torch.tensor(list(ks)))).double()


def drawn_totals(per_image: Float[Tensor, "I n"], num_samples: int, seed: int) -> Float[Tensor, "S n"]:
    """Sums over as many images as there are, drawn with replacement, for each sample."""
    rng, num_images = np.random.default_rng(seed), len(per_image)
    evenly = np.full(num_images, 1 / num_images)
    sizes = [min(SAMPLES_AT_ONCE, num_samples - first) for first in range(0, num_samples, SAMPLES_AT_ONCE)]
    times = (torch.from_numpy(rng.multinomial(num_images, evenly, size=size)).double() for size in sizes)
    return torch.cat([one @ per_image for one in times])


def gains(
    scores_a: Array, scores_b: Array, image_of_text: Indices, ks: Sequence[int], ties: str
) -> tuple[Float[Tensor, " I"], Float[Tensor, " T"]]:
    """For each image and each text as a query: at how many more of the `ks` b finds it than a does."""
    found_a, found_b = ranks(scores_a, image_of_text, ties=ties), ranks(scores_b, image_of_text, ties=ties)
    i2t, t2i = hits(found_b.i2t, ks) - hits(found_a.i2t, ks), hits(found_b.t2i, ks) - hits(found_a.t2i, ks)
    return i2t.sum(1), t2i.sum(1)


def rsum_difference(totals: Float[Tensor, "S 3"], num_images: int) -> Float[Tensor, " S"]:
    """RSUM of b minus a from sums over drawn images of (image gain, text gain, number of texts)."""
    gain_i2t, gain_t2i, num_texts = totals.unbind(1)
    return 100 * (gain_i2t / num_images + gain_t2i / num_texts)
