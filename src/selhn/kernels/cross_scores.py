"""The scores of SCAN and BFAN for all pairs on a GPU: of a pair, only its score is written.

Lee et al., ECCV 2018; Liu et al., ACM Multimedia 2019. With the products s_kl of a context's fragments k and
a query's fragments l, x_l = sum_k w_kl c_k is what l attends to, and the score of a pair is the mean or the
log-sum-exp over l of the cosines of q_l and x_l; both sides may look, and the two scores are added.
`selhn.layers.attended_cosines` has the equations, and is the way without a GPU.

The products of all pairs are one matrix product of vectors in float16, which rounds them as TF32 would,
summed and written in float32. One kernel reads them, once for each side that looks, and makes the score. The
backward pass reads them again and writes their gradient, in float16 and scaled to its range; two matrix
products make that the gradient of the vectors.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels.gpu import fusable, wide_product

SLOPE = 0.1
"""Of the LeakyReLU before the softmax."""
EPSILON = 1e-8
"""Added to every norm that something is divided by."""
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
    """Whether `attention_scores` is the way to go: float32 on a GPU, and not too many regions or words."""
    return (
        fusable(images, texts)
        and images.dtype == texts.dtype == torch.float32
        and images.numel() > 0
        and texts.numel() > 0
        and images.shape[1] <= MOST_REGIONS
        and texts.shape[1] <= MOST_WORDS
        and images.shape[1] * len(texts) * MOST_WORDS < 2**31  # the kernels count in 32 bits from an image's first
    )


def attention_scores(
    images: Float[Tensor, "I M d"],
    region_mask: Bool[Tensor, "I M"],
    texts: Float[Tensor, "T N d"],
    token_mask: Bool[Tensor, "T N"],
    directions: Sequence[Literal["t2i", "i2t"]],
    settings: AttentionSettings,
) -> Float[Tensor, "I T"]:
    """Every image against every text: words look at regions (t2i), regions at words (i2t), or both summed.

    Vectors have length 1, or 0 if padding. A fragment that sees nothing has cosine 0 and no gradient.
    """
    # The kernels, and the matrix products of the backward pass, read eight words at a time.
    missing = -texts.shape[1] % 8
    texts, token_mask = pad(texts, (0, 0, 0, missing)), pad(token_mask, (0, missing))
    regions, words = (images, region_mask.contiguous()), (texts, token_mask.contiguous())
    views: list[Tensor] = []
    with torch.autocast(images.device.type, enabled=False):
        for direction in directions:
            (contexts, seen), (queries, looking) = (regions, words) if direction == "t2i" else (words, regions)
            views += [contexts @ contexts.mT, torch.linalg.vector_norm(queries, dim=2), seen, looking]
        return _Scores.apply(images, texts, tuple(directions), settings, *views)


class _Scores(torch.autograd.Function):
    """`views`: per direction the Gram matrices of the contexts, the lengths of the queries, both masks."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        directions: tuple[str, ...],
        settings: AttentionSettings,
        *views: Tensor,
    ) -> Tensor:
        from selhn.kernels import cross_scores_triton

        # A focus jumps where a weight passes the average: there float16 alone would change scores by 1e-3.
        rows, columns = _halves(images, texts, exact=settings.focus is not None)
        dots = wide_product(rows, columns.T).view(*images.shape[:2], *texts.shape[:2])
        scores = dots.new_empty(len(images), len(texts))
        for turn, (direction, view) in enumerate(zip(directions, _fours(views))):
            cross_scores_triton.score(dots, view, scores, direction, settings, add=turn > 0)
        if any(ctx.needs_input_grad):
            width = images.shape[2]
            ctx.save_for_backward(dots, rows[:, :width], columns[:, :width], *views)
            ctx.directions, ctx.settings = directions, settings
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from selhn.kernels import cross_scores_triton

        dots, rows, columns, *views = ctx.saved_tensors
        grad = grad.contiguous()
        scale = LARGEST_PULL / grad.abs().amax().clamp(min=1e-30)
        grad_dots = torch.zeros_like(dots, dtype=torch.float16)
        grad_views: list[Tensor | None] = []
        for turn, (direction, view) in enumerate(zip(ctx.directions, _fours(views))):
            grad_gram, grad_lengths = cross_scores_triton.score_backward(
                grad, scale, dots, view, grad_dots, direction, ctx.settings, add=turn > 0
            )
            grad_views += [grad_gram.div_(scale), grad_lengths.div_(scale), None, None]
        matrix = grad_dots.view(len(rows), len(columns))
        with torch.autocast(dots.device.type, enabled=False):
            grad_images = wide_product(matrix, columns).div_(scale).view(*dots.shape[:2], -1)
            grad_texts = wide_product(matrix.T, rows).div_(scale).view(*dots.shape[2:], -1)
        return grad_images, grad_texts, None, None, *grad_views


def _fours(views: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    return [views[first : first + 4] for first in range(0, len(views), 4)]


def _halves(images: Tensor, texts: Tensor, exact: bool) -> tuple[Float[Tensor, "IM e"], Float[Tensor, "TN e"]]:
    """Regions and words in float16, as rows of two matrices whose product has the products of the vectors.

    They begin with the rounded vectors. With `exact`, what was lost in rounding follows:
    (a + a') (b + b') = a b + a' b + a b', where a' b' is less than float32 holds.
    """
    rows, columns = images.flatten(0, 1), texts.flatten(0, 1)
    a, b = rows.half(), columns.half()
    if not exact:
        return a, b
    return torch.cat([a, (rows - a).half(), a], 1), torch.cat([b, b, (columns - b).half()], 1)
