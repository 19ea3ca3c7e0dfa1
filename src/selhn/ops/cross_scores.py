"""The scores of SCAN and BFAN for all pairs on a GPU: only the score of a pair is written to memory.

Lee et al., ECCV 2018; Liu et al., ACM Multimedia 2019. With the products s_kl of a context's fragments k and
a query's fragments l, x_l = sum_k w_kl c_k is what l attends to, and the score of a pair is the mean or the
log-sum-exp over l of the cosines of q_l and x_l; both sides may attend, and the two scores are added.
`selhn.ops.attended_cosines` has the equations, and is the version without a GPU.

The products of all pairs are one matrix product of vectors in float16, which rounds them as TF32 would,
summed and written in float32. One kernel reads them, once for each side that looks, and makes the score. The
backward pass reads them again and writes their gradient, in float16 and scaled to its range; two matrix
products make that the gradient of the vectors.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from selhn.ops.gpu import takes_float32

SLOPE = 0.1
"""Slope of the LeakyReLU before the softmax."""
EPSILON = 1e-8
"""Added to every norm before dividing by it."""
MOST_REGIONS = 128
MOST_WORDS = 64
LARGEST_PULL = 256.0
"""What the largest gradient of a score is scaled to: 2^8 below the largest float16, 2^22 above the least."""


class AttentionSettings(NamedTuple):
    """`smooth` scales the softmax, `focus` is BFAN's, `lambda_lse` the lambda of LSE; None takes the mean."""

    smooth: float
    focus: Literal["equal", "prob"] | None = None
    lambda_lse: float | None = None


def can_attend(images: Float[Tensor, "I M d"], texts: Float[Tensor, "T N d"]) -> bool:
    """Whether `attention_scores` can be used: float32 on a GPU, and not too many regions or words."""
    return (
        takes_float32(images, texts)
        and images.shape[1] <= MOST_REGIONS
        and texts.shape[1] <= MOST_WORDS
        and images.shape[1] * len(texts) * MOST_WORDS
        < 2**31  # the kernels count in 32 bits from an image's first
    )


def attention_scores(
    images: Float[Tensor, "I M d"],
    region_mask: Bool[Tensor, "I M"],
    texts: Float[Tensor, "T N d"],
    token_mask: Bool[Tensor, "T N"],
    directions: Sequence[Literal["t2i", "i2t"]],
    settings: AttentionSettings,
) -> Float[Tensor, "I T"]:
    """Every image against every text: words attend to regions (t2i), regions to words (i2t), or both summed.

    Vectors have length 1, or 0 if padding. A fragment that attends to nothing has cosine 0 and no gradient.
    """
    from selhn.kernels.cross_scores import Scores

    # The kernels, and the matrix products of the backward pass, read eight words at a time.
    missing = -texts.shape[1] % 8
    texts, token_mask = pad(texts, (0, 0, 0, missing)), pad(token_mask, (0, missing))
    regions, words = (images, region_mask.contiguous()), (texts, token_mask.contiguous())
    views: list[Tensor] = []
    with torch.autocast(images.device.type, enabled=False):
        for direction in directions:
            (contexts, seen), (queries, looking) = (
                (regions, words) if direction == "t2i" else (words, regions)
            )
            views += [contexts @ contexts.mT, seen, looking, torch.linalg.vector_norm(queries, dim=2)]
        return Scores.apply(images, texts, tuple(directions), settings, *views)


def rounded(
    images: Tensor, texts: Tensor, exact: bool
) -> tuple[Float[Tensor, "IM e"], Float[Tensor, "TN e"]]:
    """Regions and words in float16, as rows of two matrices whose product has the products of the vectors.

    They begin with the rounded vectors. With `exact`, what was lost in rounding follows:
    (a + a') (b + b') = a b + a' b + a b', where a' b' is less than float32 holds.
    """
    rows, columns = images.flatten(0, 1), texts.flatten(0, 1)
    a, b = rows.half(), columns.half()
    if not exact:
        return a, b
    return torch.cat([a, (rows - a).half(), a], 1), torch.cat([b, b, (columns - b).half()], 1)
