"""SCAN, BFAN, SGR and SAF as their papers write them, pair by pair: to read, and to test the fast forms.

Regions (M, d) of an image and words (N, d) of a text are unit vectors without padding, as encoders make them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu

from selhn.base.errors import SelhnError
from selhn.layers import Focus, unit
from selhn.models.cross_attention import CrossAttention
from selhn.models.scan import StackedAttention
from selhn.models.sgraf import AttentionFiltration, GraphReasoning, GraphStep, SelfAttentionPool, SimilarityHead


def attended(
    contexts: Float[Tensor, "K d"], queries: Float[Tensor, "L d"], smooth: float, focus: Focus | None = None
) -> Float[Tensor, "L d"]:
    """What each query sees: `sum_k w_kl c_k`, `w = softmax_k(smooth * f(s_kl) / |f(s_k.)|)`, f LeakyReLU.

    BFAN then keeps the fragments of weight above the average, which for "prob" is itself weighted by sqrt(w).
    """
    activated = leaky_relu(contexts @ queries.T, 0.1)
    activated = activated / (activated.norm(dim=1, keepdim=True) + 1e-8)
    weights = (smooth * activated).softmax(0)
    if focus is not None and len(contexts) > 1:  # a single fragment is not above its own average
        confidence = torch.ones_like(weights) if focus == "equal" else weights.detach().sqrt()
        weights = weights * (weights > (confidence * weights).sum(0) / confidence.sum(0))
        weights = weights / weights.sum(0)
    return weights.T @ contexts


def stacked(head: StackedAttention, regions: Float[Tensor, "M d"], words: Float[Tensor, "N d"]) -> Float[Tensor, ""]:
    """AVG: the mean cosine of a query with what it sees; LSE: `log(sum(exp(lambda * cosine))) / lambda`.

    SCAN has one direction, BFAN the sum of both.
    """
    score = regions.new_zeros(())
    for direction in head.directions:
        looking, seen = (words, regions) if direction == "t2i" else (regions, words)
        cosines = cosine_similarity(looking, attended(seen, looking, head.smooth, head.focus), dim=1)
        scale = head.lambda_lse
        score = score + (cosines.mean() if scale is None else (scale * cosines).logsumexp(0) / scale)
    return score


def pooled(pool: SelfAttentionPool, items: Sequence[Float[Tensor, "_ d"]]) -> list[Float[Tensor, " d"]]:
    """`unit(sum_k p_k x_k)`, `p = softmax_k(W (f(x_k) * g(mean of x)))`; images share a batch norm."""
    batches = [item[None] for item in items] if pool.num_regions is None else [torch.stack(list(items))]
    logits = [pool.common(pool.local(batch) * pool.mean(batch.mean(1))[:, None]) for batch in batches]
    return [whole for p, x in zip(logits, batches) for whole in unit((p.softmax(1) * x).sum(1))]


def nodes(
    head: SimilarityHead, regions: Float[Tensor, "M d"], image: Float[Tensor, " d"],
    words: Float[Tensor, "N d"], text: Float[Tensor, " d"],
) -> Float[Tensor, "X s"]:  # fmt: skip
    """`unit(W_g (v - t)^2)` of the pooled vectors, `unit(W_l (a_n - w_n)^2)` of words and what they see."""
    whole = head.whole((image - text).square())[None]
    local = head.local((unit(attended(regions, words, head.smooth)) - words).square())
    return unit(torch.cat([whole, local]))


def reasoned(reasoning: GraphReasoning, pair: Float[Tensor, "X s"]) -> Float[Tensor, " s"]:
    """SGR: `X <- ReLU(W_v softmax((W_q X) (W_k X)') X)`, a few times; the node of the whole."""
    for step in reasoning.steps:
        assert isinstance(step, GraphStep)
        edges = (step.query(pair) @ step.key(pair).T).softmax(1)
        pair = step.value(edges @ pair).relu()
    return pair[0]


def filtered(reasoning: AttentionFiltration, pairs: Sequence[Float[Tensor, "X s"]]) -> list[Float[Tensor, " s"]]:
    """SAF of a text with all images: `unit(sum_n b_n x_n)`, `b = sigmoid(BN(W x_n))` divided by its sum."""
    gates = reasoning.norm(reasoning.attention(torch.cat(list(pairs)))).sigmoid()[:, 0]
    by_pair = zip(gates.split([len(pair) for pair in pairs]), pairs, strict=True)
    return [unit(gate / (gate.sum() + 1e-8) @ pair) for gate, pair in by_pair]


def sgraf(
    model: CrossAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]]
) -> Float[Tensor, "I T"]:
    """`sigmoid(W x)`, text by text, the longest first, as in the authors' sorted batches."""
    head, columns = model.head, {}
    image_pool, text_pool = model.image.pool, model.text.pool
    assert isinstance(head, SimilarityHead)
    assert isinstance(image_pool, SelfAttentionPool)
    assert isinstance(text_pool, SelfAttentionPool)
    of_images, of_texts = pooled(image_pool, images), pooled(text_pool, texts)
    for t in sorted(range(len(texts)), key=lambda t: -len(texts[t])):
        pairs = [nodes(head, own, whole, texts[t], of_texts[t]) for own, whole in zip(images, of_images)]
        if isinstance(head.reasoning, GraphReasoning):
            vectors = [reasoned(head.reasoning, pair) for pair in pairs]
        else:
            vectors = filtered(head.reasoning, pairs)
        columns[t] = head.last(torch.stack(vectors))[:, 0].sigmoid()
    return torch.stack([columns[t] for t in range(len(texts))], 1)


def scores(
    model: CrossAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]]
) -> Float[Tensor, "I T"]:
    """What `model.score` gives for the fragments of these images and texts, by the equations above."""
    head = model.head
    if isinstance(head, SimilarityHead):
        return sgraf(model, images, texts)
    if isinstance(head, StackedAttention):
        return torch.stack([torch.stack([stacked(head, own, words) for words in texts]) for own in images])
    raise SelhnError(f"there is no reference for the scores of {type(head).__name__}: write its equations")
