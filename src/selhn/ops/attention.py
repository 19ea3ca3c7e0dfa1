"""Attention between regions and words, for all pairs of image and text at once: Lee et al., SCAN, ECCV 2018.

Each of Q queries (L fragments each) attends to each of C contexts (K fragments each). With the
product s_kl = c_k . q_l of two unit vectors,

    weight_kl = softmax over k of smooth * a_kl,   a_kl = f(s_kl) / (|f(s_k.)| + 1e-8),   f = LeakyReLU(0.1)

where the norm runs over the fragments l of the query. Words that attend to regions are queries with the
images as contexts (text to image, t2i); regions that attend to words are the reverse (i2t).

A big tensor has the axes "C K L Q". Nothing is summed over the last of them, so that every pass runs along
contiguous memory. The attended vector itself, (C, Q, L, d) numbers, is not made if only its cosine with
the query is needed: with the Gram matrix G of the context, q_l . sum_k w_kl c_k = sum_k w_kl s_kl, and the
square of the attended vector's length is w' G w.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import leaky_relu

from selhn.ops.cross_scores import EPSILON, SLOPE
from selhn.ops.fragments import Fragments, chunks, real_or_all
from selhn.ops.pairing import Pairing

Focus = Literal["equal", "prob"]
"""Which fragments of a context BFAN keeps: see `attended_cosines`."""

# The passes over one chunk stay about within the cache of a CPU core.
CHUNK_BYTES = 2**20


def attended_cosines(pairing: Pairing, smooth: float, focus: Focus | None = None) -> Float[Tensor, "c L Q"]:
    """The cosine of every query fragment with what it attends to, in all contexts; 0 at padding.

    With a `focus` (Liu et al., BFAN, ACM MM 2019) only fragments with a weight above the average are attended
    to, with weights rescaled to sum to 1: the plain average ("equal"), or one weighted with the square roots
    of the weights ("prob"). The choice has no gradient. If no weight is above the average, because all are
    equal, all are kept.
    """
    contexts = pairing.contexts
    dot, square = _Attended.apply(
        pairing.products(), contexts.products(), log_mask(contexts.mask), smooth, focus
    )
    return _cosines(dot, square, pairing)


def weighted_cosines(pairing: Pairing, weights: Float[Tensor, "C K L q"]) -> Float[Tensor, "c L Q"]:
    """The cosines of `attended_cosines` for weights that do not come from these products."""
    dot, square = (weights * pairing.products()).sum(1), attended_squares(pairing.contexts, weights)
    return _cosines(dot, square, pairing)


def attended_squares(contexts: Fragments, weights: Float[Tensor, "C K L q"]) -> Float[Tensor, "C L q"]:
    """The squared length of what each query fragment attends to, `w' G w`; at least 1e-30."""
    with torch.autocast(weights.device.type, enabled=False):
        squares = (_times_gram(contexts.products(), weights) * weights).sum(1)
    # Clamped because callers take the root, whose slope at zero (padding) is infinite.
    return squares.clamp(min=1e-30)


def fragment_mean(values: Float[Tensor, "C L Q"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "C Q"]:
    """The mean over the real fragments of every query; 0 if there are none."""
    present = mask.T
    return values.masked_fill(~present, 0).sum(1) / present.sum(0).clamp(min=1)


def softmax_attention(
    dots: Float[Tensor, "C K L q"], mask: Bool[Tensor, "C K"], smooth: float
) -> Float[Tensor, "C K L q"]:
    """The attention of every query fragment over a context's fragments, from their products."""
    return _Weights.apply(dots, log_mask(mask), smooth)


def _cosines(dot: Tensor, square: Tensor, pairing: Pairing) -> Tensor:
    queries = pairing.queries
    dot, square = (pairing.by_query(numbers.mT).mT for numbers in (dot, square))
    if queries.gram is None:
        lengths = torch.linalg.vector_norm(queries.vectors, dim=2)
    else:
        lengths = queries.gram.diagonal(dim1=1, dim2=2).clamp(min=1e-30).sqrt()
    # Clamped before the root, whose slope at zero (padding) is infinite.
    return dot / (lengths.T * square.clamp(min=1e-30).sqrt()).clamp(min=EPSILON)


@torch.no_grad()
def attention_weights(
    pairing: Pairing, smooth: float, focus: Focus | None = None
) -> Float[Tensor, "C K L q"]:
    """The attention of every query fragment over a context's fragments; without gradients, for display."""
    weights = softmax_attention(pairing.products(), pairing.contexts.mask, smooth)
    if focus is not None:
        _focus(weights, log_mask(pairing.contexts.mask), focus)
    return weights


def unit_attention(pairing: Pairing, smooth: float) -> Float[Tensor, "C q L K"]:
    """Weights with which a context's fragments add up to the attended vector, at unit length.

    For models that need the attended vector: scaled beforehand, it is one matrix product and nothing more.
    """
    weights = softmax_attention(pairing.products(), pairing.contexts.mask, smooth)
    lengths = attended_squares(pairing.contexts, weights).sqrt().unsqueeze(1)
    return (weights / (lengths + EPSILON)).permute(0, 3, 2, 1)


def log_mask(mask: Bool[Tensor, "C K"]) -> Float[Tensor, "C K 1 1"]:
    """0 for fragments, -inf for padding; in a context of padding only, the zeros are attended to."""
    zeros = torch.zeros(mask.shape, device=mask.device)
    return zeros.masked_fill(~real_or_all(mask), -torch.inf)[:, :, None, None]


def _softmax_forward(dots: Tensor, log_mask: Tensor, smooth: float, weights: Tensor) -> Tensor:
    """Fills in the weights; returns the norms |f(s_k.)| for the backward pass."""
    activated = leaky_relu(dots, SLOPE)
    # Not vector_norm, which is three times slower on a CPU along any axis but the last.
    norms = activated.square().sum(2, keepdim=True).sqrt()
    logits = torch.addcmul(log_mask.to(dots.dtype), activated, smooth / (norms + EPSILON), out=activated)
    torch.softmax(logits, 1, out=weights)
    return norms


def _softmax_backward(grad_logits: Tensor, dots: Tensor, norms: Tensor, smooth: float) -> Tensor:
    """From the gradient of the logits, which is overwritten, to that of the products."""
    activated = leaky_relu(dots, SLOPE)
    along = (grad_logits * activated).sum(2, keepdim=True) / ((norms + EPSILON) * norms.clamp(min=1e-30))
    grad = grad_logits.addcmul_(activated, along, value=-1).mul_(smooth / (norms + EPSILON))
    return torch.ops.aten.leaky_relu_backward(grad, dots, SLOPE, False)


def _focus(weights: Tensor, log_mask: Tensor, focus: Focus) -> None:
    """Keep only the weights above the average, scaled to sum to 1."""
    if focus == "equal":
        average = weights.sum(1, keepdim=True) / log_mask.isfinite().sum(1, keepdim=True)
    else:
        roots = weights.sqrt()
        average = (roots * weights).sum(1, keepdim=True) / roots.sum(1, keepdim=True)
    # The largest is above the average unless all are equal.
    weights.mul_((weights > average) | (weights == weights.amax(1, keepdim=True)))
    weights.div_(weights.sum(1, keepdim=True))


def _chunks(dots: Tensor) -> list[slice]:
    """The contexts, a few at a time on a CPU."""
    return chunks(len(dots), dots.element_size() * dots[:1].numel(), CHUNK_BYTES, dots.device)


class _Weights(torch.autograd.Function):
    """The weights alone; only they and the products are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, dots: Tensor, log_mask: Tensor, smooth: float) -> Tensor:
        weights = torch.empty_like(dots)
        norms = _softmax_forward(dots, log_mask, smooth, weights)
        ctx.save_for_backward(dots, weights, norms)
        ctx.smooth = smooth
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        dots, weights, norms = ctx.saved_tensors
        grad_logits = grad * weights
        grad_logits.addcmul_(weights, grad_logits.sum(1, keepdim=True), value=-1)
        return _softmax_backward(grad_logits, dots, norms, ctx.smooth), None, None


class _Attended(torch.autograd.Function):
    """q_l . x and x . x for the attended vectors x = sum_k w_kl c_k, from products and Gram matrices.

    The backward pass, with the gradients a of the first and b of the second:
    dL/dw_k = a s_k + 2 b (G w)_k, whose mean under w is a (q . x) + 2 b (x . x); dL/ds_k has a w_k besides what comes
    through the weights; dL/dG = sum over l and queries of b w w'. A focused softmax is a softmax over what was kept.
    """

    @staticmethod
    def forward(
        ctx: Any, dots: Tensor, gram: Tensor, log_mask: Tensor, smooth: float, focus: Focus | None
    ) -> tuple[Tensor, Tensor]:
        wants_gradient = any(ctx.needs_input_grad)
        kept = torch.empty_like(dots) if wants_gradient else None
        norms = torch.empty_like(dots[:, :, :1])
        dot, square = torch.empty_like(dots[:, 0]), torch.empty_like(dots[:, 0])
        with torch.autocast(dots.device.type, enabled=False):
            for some in _chunks(dots):
                weights = torch.empty_like(dots[some]) if kept is None else kept[some]
                norms[some] = _softmax_forward(dots[some], log_mask[some], smooth, weights)
                if focus is not None:
                    _focus(weights, log_mask[some], focus)
                torch.sum(weights * dots[some], 1, out=dot[some])
                torch.sum(_times_gram(gram[some], weights).mul_(weights), 1, out=square[some])
        if wants_gradient:
            ctx.save_for_backward(dots, gram, kept, norms, dot, square)
            ctx.smooth = smooth
        return dot, square

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_dot: Tensor, grad_square: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dots, gram, weights, norms, dot, square = ctx.saved_tensors
        mean = grad_dot * dot + 2 * grad_square * square
        grad_dots, grad_gram = torch.empty_like(dots), torch.empty_like(gram)
        with torch.autocast(dots.device.type, enabled=False):
            for some in _chunks(dots):
                s, w = dots[some], weights[some]
                a, b = grad_dot[some, None], grad_square[some, None]
                torch.bmm((w * b).flatten(2), w.flatten(2).transpose(1, 2), out=grad_gram[some])
                grad_logits = (
                    _times_gram(gram[some], w).mul_(2 * b).addcmul_(s, a).sub_(mean[some, None]).mul_(w)
                )
                grad_s = _softmax_backward(grad_logits, s, norms[some], ctx.smooth)
                torch.addcmul(grad_s, w, a, out=grad_dots[some])
        return grad_dots, grad_gram, None, None, None


def _times_gram(gram: Tensor, weights: Tensor) -> Tensor:
    """G w for every query fragment."""
    return torch.bmm(gram, weights.flatten(2)).view_as(weights)
