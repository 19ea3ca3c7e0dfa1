"""Whether one system is better than another, or just lucky with the test images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.eval.metrics import DEFAULT_KS, check_ks, ranks
from selhn.eval.scoring import Array, Indices, checked_image_of_text, checked_scores

SAMPLES_AT_ONCE = 256


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

    rng, num_images = np.random.default_rng(seed), len(per_image)
    evenly = np.full(num_images, 1 / num_images)
    drawn = []
    for first in range(0, num_samples, SAMPLES_AT_ONCE):
        size = min(SAMPLES_AT_ONCE, num_samples - first)
        times_drawn = torch.from_numpy(rng.multinomial(num_images, evenly, size=size)).double()
        drawn.append(rsum_difference(times_drawn @ per_image, num_images))
    differences = torch.cat(drawn)
    low, high = differences.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    # The observed data count as one more sample: p is never 0, which no finite number of samples can show.
    tail = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * tail / (1 + num_samples))
    difference = float(rsum_difference(per_image.sum(0, keepdim=True), num_images))
    return Comparison(difference, low, high, p_value, num_samples)


def gains(
    scores_a: Array, scores_b: Array, image_of_text: Indices, ks: Sequence[int], ties: str
) -> tuple[Float[Tensor, " I"], Float[Tensor, " T"]]:
    """For each image and each text as a query: at how many more of the `ks` b finds it than a does."""
    found_a, found_b = ranks(scores_a, image_of_text, ties=ties), ranks(scores_b, image_of_text, ties=ties)

    def num_hits(rank: Int[Tensor, " Q"]) -> Float[Tensor, " Q"]:
        return ((rank[:, None] >= 0) & (rank[:, None] < torch.tensor(ks))).sum(1).double()

    return num_hits(found_b.i2t) - num_hits(found_a.i2t), num_hits(found_b.t2i) - num_hits(found_a.t2i)


def rsum_difference(totals: Float[Tensor, "S 3"], num_images: int) -> Float[Tensor, " S"]:
    """RSUM of b minus a from sums over drawn images of (image gain, text gain, number of texts)."""
    gain_i2t, gain_t2i, num_texts = totals.unbind(1)
    return 100 * (gain_i2t / num_images + gain_t2i / num_texts)
