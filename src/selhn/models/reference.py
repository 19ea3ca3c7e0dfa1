"""Cross-attention as the papers write it, pair by pair: to read, and to test the fast forms.

Regions (M, d) of an image and words (N, d) of a text come without padding, as encoders make them.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, leaky_relu, pad

from selhn.base.errors import SelhnError
from selhn.layers import Focus, unit
from selhn.models.camp import MessagePassing, Messages
from selhn.models.cmcan import ConfidentReasoning, NeighbourPool
from selhn.models.cross_attention import CrossAttention
from selhn.models.gsmn import GraphMatching, RegionGraph, StructureMatch, WordGraph
from selhn.models.imram import Memory, RecurrentAttention
from selhn.models.naaf import NegativeAwareAttention
from selhn.models.scan import StackedAttention
from selhn.models.sgraf import AttentionFiltration, GraphReasoning, GraphStep, SelfAttentionPool, SimilarityHead

Side = Mapping[str, Sequence[Tensor]]


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


def region_edges(graph: RegionGraph, boxes: Float[Tensor, "M 4"]) -> Float[Tensor, "M M k"]:
    """Gaussians of distance and angle of two centres, normalised over the regions j that region i hears.

    The authors' program normalises over kernels, and gives back to region i the sum over j of its own vector.
    """
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    across, down = (centres[:, None] - centres).unbind(2)
    angle = (torch.atan2(across, down)[..., None] - graph.mean_theta[:, 0]).abs()
    angle = torch.minimum(angle, (2 * math.pi - angle).abs())
    far = (across**2 + down**2).sqrt()[..., None] - graph.mean_rho[:, 0]
    weights = (-0.5 * (far / graph.precision_rho[:, 0]) ** 2 - 0.5 * (angle / graph.precision_theta[:, 0]) ** 2).exp()
    if graph.own_vectors:
        sums = (weights / weights.sum(2, keepdim=True)).sum(1)
        return torch.stack([torch.diag(own) for own in sums.T], 2)
    return weights / weights.sum(1, keepdim=True)


def word_edges(
    graph: WordGraph, words: Float[Tensor, "N d"], parse: Int[Tensor, "E 2"] | None
) -> Float[Tensor, "N N 1"]:
    """`exp(smooth * w_i . w_j)` of words that are joined, all of them or by a parse, normalised over j."""
    joined = torch.ones(len(words), len(words), dtype=torch.bool) if parse is None else torch.eye(len(words)).bool()
    for head, dependent in [] if parse is None else parse.tolist():
        if 0 < head < len(words) and 0 < dependent < len(words):
            joined[head, dependent] = joined[dependent, head] = True
    weights = (graph.smooth * words @ words.T).exp() * (torch.eye(len(words)) if graph.own_vectors else joined)
    return (weights / weights.sum(1, keepdim=True))[..., None]


def structure(
    match: StructureMatch, head: GraphMatching, nodes: Float[Tensor, "L d"], seen: Float[Tensor, "K d"],
    edges: Float[Tensor, "L L e"],
) -> Float[Tensor, ""]:  # fmt: skip
    """GSMN, one side: `mean_i out_2(tanh(out_1(h_i)))`, `h_i = concat_k(W_k sum_j e_ijk m_j + b_k)`."""
    looked_at = attended(seen, nodes, head.smooth).unflatten(1, (head.blocks, -1))
    matching = cosine_similarity(nodes.unflatten(1, (head.blocks, -1)), looked_at, dim=2)
    by_kernel = edges.expand(-1, -1, len(match.convolutions)).unbind(2)
    hidden = torch.cat([layer(own @ matching) for layer, own in zip(match.convolutions, by_kernel)], 1)
    return match.out_2(match.out_1(hidden).tanh()).mean()


def gsmn(
    model: CrossAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]], side: Side
) -> Float[Tensor, "I T"]:
    """The sum of both sides."""
    head, by_box, by_word = model.head, model.image.pool, model.text.pool
    assert isinstance(head, GraphMatching)
    assert isinstance(by_box, RegionGraph)
    assert isinstance(by_word, WordGraph)
    found = torch.zeros(len(images), len(texts), dtype=images[0].dtype)
    for i, regions in enumerate(images):
        for t, words in enumerate(texts):
            visual = structure(head.visual, head, regions, words, region_edges(by_box, side["boxes"][i].to(regions)))
            parse = side["dependencies"][t] if "dependencies" in side else None
            found[i, t] = visual + structure(head.textual, head, words, regions, word_edges(by_word, words, parse))
    return found


def surroundings(
    pool: NeighbourPool, images: Sequence[Float[Tensor, "M d"]], adjacency: Sequence[Bool[Tensor, "M M"]]
) -> list[tuple[Float[Tensor, " d"], Float[Tensor, "M d"]]]:
    """Of each image the pooled vector at unit length, and the sums of its regions with their neighbours.

    `p_m = sum_j softmax_j(l_j) v_j / |sum over all|`: j are at most five, and a region stands in for those it lacks.
    """
    batch, found = torch.stack(list(images)), []
    for x, own, joined in zip(batch, pool.common(pool.local(batch) * pool.mean(batch.mean(1))[:, None]), adjacency):
        total, near = (own.softmax(0) * x).sum(0), []
        for region, row in enumerate(joined):
            others = row.nonzero()[: pool.neighbours, 0].tolist()
            places = others + [region] * (pool.neighbours - len(others))
            near.append((own[places].softmax(0) * x[places]).sum(0) / total.norm())
        found.append((unit(total), torch.stack(near)))
    return found


def cmcan(
    model: CrossAttention, images: Sequence[Float[Tensor, "_ d"]], texts: Sequence[Float[Tensor, "_ d"]], side: Side
) -> Float[Tensor, "I T"]:
    """`sigmoid(W [x; y])` of the nodes of words and of the nodes of regions times their confidence."""
    head, image_pool, text_pool = model.head, model.image.pool, model.text.pool
    assert isinstance(head, ConfidentReasoning)
    assert isinstance(image_pool, NeighbourPool)
    assert isinstance(text_pool, SelfAttentionPool)

    def compared(layer: nn.Module, one: Tensor, other: Tensor) -> Tensor:
        return unit(layer((one - other).square()).relu())

    found = torch.zeros(len(images), len(texts), dtype=images[0].dtype)
    wholes = pooled(text_pool, texts)
    for i, (image, near) in enumerate(surroundings(image_pool, images, side["adjacency"])):
        for t, (text, words) in enumerate(zip(wholes, texts)):
            whole = compared(head.whole, image, text)
            confidence = head.norm(head.confidence(whole * compared(head.around, near, text))[:, 0]).sigmoid()
            of_words = compared(head.by_word, unit(attended(images[i], words, head.smooth)), words)
            of_regions = compared(head.by_region, unit(attended(words, images[i], head.smooth)), images[i])
            x = reasoned(head.textual, torch.cat([whole[None], of_words]))
            y = reasoned(head.visual, torch.cat([whole[None], confidence[:, None] * of_regions]))
            found[i, t] = head.last(torch.cat([x, y]))[0].sigmoid()
    return found


def scores(
    model: CrossAttention,
    images: Sequence[Float[Tensor, "_ d"]],
    texts: Sequence[Float[Tensor, "_ d"]],
    side: Side | None = None,
) -> Float[Tensor, "I T"]:
    """What `model.score` gives for the fragments of these images and texts, by the equations above.

    `side` has the side inputs that the model takes, one for each image or text, without padding.
    """
    head = model.head
    if isinstance(head, GraphMatching):
        return gsmn(model, images, texts, side or {})
    if isinstance(head, ConfidentReasoning):
        return cmcan(model, images, texts, side or {})
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
