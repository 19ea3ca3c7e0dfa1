"""Cross-attention as the papers write it, pair by pair: to read, and to test the fast forms.

Regions (M, d) of an image and words (N, d) of a text come without padding, as encoders make them.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu, pad

from selhn.base.errors import SelhnError
from selhn.layers import Focus, unit
from selhn.models.camp import MessagePassing, Messages
from selhn.models.cross_attention import CrossAttention
from selhn.models.imram import Memory, RecurrentAttention
from selhn.models.naaf import NegativeAwareAttention
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


def recurrent(
    head: RecurrentAttention, regions: Float[Tensor, "M d"], words: Float[Tensor, "N d"]
) -> Float[Tensor, ""]:
    """IMRAM: what a query has seen is remembered, `q <- g q + (1 - g) o`; cosines are with the first query."""
    score = regions.new_zeros(())
    for direction, memory in head.memories.items():
        assert isinstance(memory, Memory)
        looking, seen = (words, regions) if direction == "t2i" else (regions, words)
        query = looking
        for _ in range(head.steps):
            found = attended(seen, query, head.smooth)
            score = score + cosine_similarity(looking, found, dim=1).mean()
            both = torch.cat([query, found], 1)
            gate = memory.gate(both).sigmoid()
            query = gate * query + (1 - gate) * memory.output(both).tanh()
            query = unit(query) if head.memory_norm else query
    return score


def received(
    messages: Messages, senders: Float[Tensor, "s d"], receivers: Float[Tensor, "r d"], real: int | None = None
) -> Float[Tensor, "r d"]:
    """CAMP: the messages of all that send, and what these see of each other; only the first `real` are seen."""
    scale = senders.shape[1] ** -0.5
    first = (scale * messages.query(receivers) @ messages.key(senders).T).softmax(1) @ senders
    return (scale * messages.own_query(first) @ messages.own_key(first[:real]).T).softmax(1) @ first[:real]


def fused(messages: Messages, own: Float[Tensor, "r d"], received: Float[Tensor, "r d"]) -> Float[Tensor, " d"]:
    """CAMP: `c = ReLU(F g [v; u]) + v`, summed up with `softmax(H ReLU(G c))`, the mean of its heads."""
    message = unit(received)
    gate = (own * message).sum(1, keepdim=True).sigmoid()
    both = messages.fuse(gate * torch.cat([own, message], 1)).relu() + own
    return unit(messages.summary(both).softmax(0).mean(1) @ both)


def messages(head: MessagePassing, regions: Float[Tensor, "M d"], words: Float[Tensor, "N d"]) -> Float[Tensor, ""]:
    """CAMP: the sigmoid of an MLP, or in the first stage a cosine of means, over words with their padding."""
    if head.gated:
        of_regions = fused(head.to_regions, regions, received(head.to_regions, words, regions))
        of_words = fused(head.to_words, words, received(head.to_words, regions, words))
        return head.out(torch.cat([of_regions, of_words]))[0].sigmoid()
    padded = pad(words, (0, 0, 0, max(0, head.padded_length - len(words))))
    of_regions = unit(received(head.to_regions, words, regions).mean(0))
    return of_regions @ unit(received(head.to_words, regions, padded, len(words)).mean(0))


def negative_aware(
    head: NegativeAwareAttention, regions: Float[Tensor, "M d"], words: Float[Tensor, "N d"], threshold: float
) -> Float[Tensor, ""]:
    """NAAF: the mean of `n + f + r` over words; see `selhn.models.naaf` for the three."""
    over = regions @ words.T - threshold
    best = over.amax(0)
    judged = best
    if not head.training and head.intra_lambda is not None:
        judged = (head.intra_lambda * words @ words.T).softmax(1) @ best
    seen = ((head.smooth * over).exp() * (over > 0)).T @ regions
    features = (words * seen).sum(1) / seen.norm(dim=1).clamp(min=1e-8)
    return (best * (judged < 0) + features + (words * attended(regions, words, head.smooth)).sum(1)).mean()


def naaf(
    head: NegativeAwareAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]]
) -> Float[Tensor, "I T"]:
    """Text by text, the longest first: in training, the words of each change the threshold of the next."""
    limits, columns = head.thresholds, {}
    threshold, safe = limits.both().tolist()
    matching, others = texts[0].new_zeros(0), texts[0].new_zeros(0)
    for t in sorted(range(len(texts)), key=lambda t: -len(texts[t])):
        at = threshold if head.training else safe
        columns[t] = torch.stack([negative_aware(head, own, texts[t], at) for own in images])
        if not head.training:
            continue
        mined = int(columns[t].argmax()) == t
        if mined:
            lowest = images[int(columns[t].argmin())]
            matching = torch.cat([matching, (images[t] @ texts[t].T).amax(0).detach()])
            others = torch.cat([others, (lowest @ texts[t].T).amax(0).detach()])
        if mined and len(matching) > limits.min_words:
            met = crossing(matching, others, limits.alpha)
            new = (threshold, safe) if met is None else (met, float(matching.mean() - 3 * matching.std()))
            threshold, safe = (
                0.7 * (value if 0 <= value <= 1 else 0.0) + 0.3 * old
                for value, old in zip(new, (threshold, safe), strict=True)
            )
        if len(matching) < limits.min_words:
            threshold = safe = 0.0
    limits.store(limits.both().new_tensor([threshold, safe]))
    return torch.stack([columns[t] for t in range(len(texts))], 1)


def crossing(matching: Float[Tensor, " n"], others: Float[Tensor, " n"], alpha: float) -> float | None:
    """Where two normal densities meet, one of them scaled by alpha; None if nowhere."""
    (mean, other_mean), (std, other_std) = (matching.mean(), others.mean()), (matching.std(), others.std())
    a = std**2 - other_std**2
    b = 2 * (mean * other_std**2 - other_mean * std**2)
    c = (other_mean * std) ** 2 - (mean * other_std) ** 2
    c = c + 2 * (std * other_std) ** 2 * (other_std / (alpha * std) + 1e-8).log()
    inside = b**2 - 4 * a * c
    return float((-b + inside.sqrt()) / (2 * a + 1e-10)) if inside > 0 else None


def scores(
    model: CrossAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]]
) -> Float[Tensor, "I T"]:
    """What `model.score` gives for the fragments of these images and texts, by the equations above."""
    head = model.head
    if isinstance(head, SimilarityHead):
        return sgraf(model, images, texts)
    if isinstance(head, NegativeAwareAttention):
        return naaf(head, images, texts)
    by_pair: Mapping[type, Callable[..., Tensor]] = {
        StackedAttention: stacked, RecurrentAttention: recurrent, MessagePassing: messages
    }  # fmt: skip
    if type(head) in by_pair:
        score = by_pair[type(head)]
        return torch.stack([torch.stack([score(head, own, words) for words in texts]) for own in images])
    raise SelhnError(f"there is no reference for the scores of {type(head).__name__}: write its equations")
