"""The scores of every cross-attention model from its paper's equations, one pair of image and text at a time.

Images and texts are lists of their regions' and words' vectors, without padding; `side` has side inputs in the same
form. `EQUATIONS` has one function for each kind of head, `scores_of` picks it.
"""

import math

import torch
from torch.nn.functional import cosine_similarity, leaky_relu, pad

from selhn.models.camp import MessagePassing
from selhn.models.cmcan import ConfidentReasoning
from selhn.models.gsmn import GraphMatching
from selhn.models.imram import RecurrentAttention
from selhn.models.naaf import NegativeAwareAttention
from selhn.models.scan import StackedAttention
from selhn.models.sgraf import GraphReasoning, SimilarityHead
from selhn.ops import unit


def scores_of(model, images, texts, side=None):
    """(images, texts)."""
    return model.activation(EQUATIONS[type(model.head)](model, images, texts, side or {}))


def by_pair(score, images, texts):
    return torch.stack([torch.stack([score(regions, words) for words in texts]) for regions in images])


def attended(contexts, queries, smooth, focus=None):
    """`sum_k w_kl c_k`, `w = softmax_k(smooth * f(s_kl) / |f(s_k.)|)`, f LeakyReLU; a vector for each query.

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


def pooled(pool, items):
    """The vector of each item; images share a batch norm, because all have the same number of regions."""
    batches = [item[None] for item in items] if pool.num_regions is None else [torch.stack(list(items))]
    logits = [pool.common(pool.local(batch) * pool.mean(batch.mean(1))[:, None]) for batch in batches]
    return [whole for p, x in zip(logits, batches, strict=True) for whole in unit((p.softmax(1) * x).sum(1))]


def scan(model, images, texts, side):
    """SCAN, BFAN: the mean cosine of queries and attended vectors, or `log(sum(exp(lambda cosine))) / lambda`."""
    head = model.head

    def score(regions, words):
        total = regions.new_zeros(())
        for direction in head.directions:
            looking, seen = (words, regions) if direction == "t2i" else (regions, words)
            cosines = cosine_similarity(looking, attended(seen, looking, head.smooth, head.focus), dim=1)
            scale = head.lambda_lse
            total = total + (cosines.mean() if scale is None else (scale * cosines).logsumexp(0) / scale)
        return total

    return by_pair(score, images, texts)


def imram(model, images, texts, side):
    """Queries are updated, `q <- g q + (1 - g) o`; cosines are with the first query."""

    def score(regions, words):
        total = regions.new_zeros(())
        for direction, memory in model.head.memories.items():
            looking, seen = (words, regions) if direction == "t2i" else (regions, words)
            query = looking
            for _ in range(model.head.steps):
                found = attended(seen, query, memory.smooth)
                total = total + cosine_similarity(looking, found, dim=1).mean()
                both = torch.cat([query, found], 1)
                gate = memory.gate(both).sigmoid()
                query = gate * query + (1 - gate) * memory.output(both).tanh()
                query = unit(query) if memory.normed else query
        return total

    return by_pair(score, images, texts)


def camp(model, images, texts, side):
    """An MLP of both sides; in the first stage the cosine of their means, with padding of words."""
    head = model.head

    def received(messages, senders, receivers, real=None):
        """The messages of all senders, after attending to each other; only the first `real` count."""
        scale = senders.shape[1] ** -0.5
        first = (scale * messages.query(receivers) @ messages.key(senders).T).softmax(1) @ senders
        return (scale * messages.own_query(first) @ messages.own_key(first[:real]).T).softmax(1) @ first[
            :real
        ]

    def fused(messages, own, received):
        """`c = ReLU(F g [v; u]) + v`, summed up with `softmax(H ReLU(G c))`, the mean of its heads."""
        message = unit(received)
        gate = (own * message).sum(1, keepdim=True).sigmoid()
        both = messages.fuse(gate * torch.cat([own, message], 1)).relu() + own
        return unit(messages.summary(both).softmax(0).mean(1) @ both)

    def score(regions, words):
        of_regions = received(head.to_regions, words, regions)
        if head.gated:
            of_words = received(head.to_words, regions, words)
            image = fused(head.to_regions, regions, of_regions)
            return head.out(torch.cat([image, fused(head.to_words, words, of_words)]))[0]
        padded = pad(words, (0, 0, 0, max(0, head.padded_length - len(words))))
        of_words = received(head.to_words, regions, padded, len(words))
        return unit(of_regions.mean(0)) @ unit(of_words.mean(0))

    return by_pair(score, images, texts)


def reasoned(reasoning, pair):
    """SGR: `X <- ReLU(W_v softmax((W_q X) (W_k X)') X)`, a few times; the node of the whole."""
    for step in reasoning.steps:
        edges = (step.query(pair) @ step.key(pair).T).softmax(1)
        pair = step.value(edges @ pair).relu()
    return pair[0]


def filtered(filtration, pairs):
    """SAF, of a text with all images: `unit(sum_n b_n x_n)`, `b = sigmoid(BN(W x_n))` divided by its sum."""
    gates = filtration.norm(filtration.attention(torch.cat(pairs))).sigmoid()[:, 0]
    own = zip(gates.split([len(pair) for pair in pairs]), pairs, strict=True)
    return [unit(gate / (gate.sum() + 1e-8) @ pair) for gate, pair in own]


def sgraf(model, images, texts, side):
    """`W x`, text by text, the longest first, as in the authors' sorted batches.

    Nodes are `unit(W_g (v - t)^2)` of the pooled vectors, `unit(W_l (a_n - w_n)^2)` of words.
    """
    head, columns = model.head, {}
    of_images, of_texts = pooled(model.image.pool, images), pooled(model.text.pool, texts)
    for t in sorted(range(len(texts)), key=lambda t: -len(texts[t])):
        pairs = []
        for regions, image in zip(images, of_images, strict=True):
            seen = unit(attended(regions, texts[t], head.smooth))
            of_words = head.local((seen - texts[t]).square())
            pairs.append(unit(torch.cat([head.whole((image - of_texts[t]).square())[None], of_words])))
        graph = isinstance(head.reasoning, GraphReasoning)
        found = (
            [reasoned(head.reasoning, pair) for pair in pairs] if graph else filtered(head.reasoning, pairs)
        )
        columns[t] = head.last(torch.stack(found))[:, 0]
    return torch.stack([columns[t] for t in range(len(texts))], 1)


def surroundings(pool, images, adjacency):
    """For each image, the pooled vector at unit length, and the sums of its regions and neighbours.

    There are at most `neighbours` of them, and a region replaces those it lacks.
    """
    batch, found = torch.stack(list(images)), []
    logits = pool.common(pool.local(batch) * pool.mean(batch.mean(1))[:, None])
    for x, own, joined in zip(batch, logits, adjacency, strict=True):
        total, near = (own.softmax(0) * x).sum(0), []
        for region, row in enumerate(joined):
            others = row.nonzero()[: pool.neighbours, 0].tolist()
            places = others + [region] * (pool.neighbours - len(others))
            near.append((own[places].softmax(0) * x[places]).sum(0) / total.norm())
        found.append((unit(total), torch.stack(near)))
    return found


def cmcan(model, images, texts, side):
    """`W [x; y]` of the nodes of words and of the nodes of regions times their confidence."""
    head = model.head

    def compared(layer, one, other):
        return unit(layer((one - other).square()).relu())

    found = torch.zeros(len(images), len(texts), dtype=images[0].dtype)
    wholes = pooled(model.text.pool, texts)
    for i, (image, near) in enumerate(surroundings(model.image.pool, images, side["adjacency"])):
        for t, (text, words) in enumerate(zip(wholes, texts, strict=True)):
            whole = compared(head.whole, image, text)
            logits = head.confidence(whole * compared(head.around, near, text))[:, 0]
            confidence = head.norm(logits).sigmoid()
            of_words = compared(head.by_word, unit(attended(images[i], words, head.smooth)), words)
            seen = unit(attended(words, images[i], head.smooth))
            of_regions = compared(head.by_region, seen, images[i])
            x = reasoned(head.textual, torch.cat([whole[None], of_words]))
            y = reasoned(head.visual, torch.cat([whole[None], confidence[:, None] * of_regions]))
            found[i, t] = head.last(torch.cat([x, y]))[0]
    return found


def region_edges(graph, boxes):
    """Gaussians of distance and angle of two centres, normalised over the neighbours j of region i.

    The authors' program normalises over kernels, and gives region i the sum over j of its own vector.
    """
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    across, down = (centres[:, None] - centres).unbind(2)
    angle = (torch.atan2(across, down)[..., None] - graph.mean_theta[:, 0]).abs()
    angle = torch.minimum(angle, (2 * math.pi - angle).abs())
    far = (across**2 + down**2).sqrt()[..., None] - graph.mean_rho[:, 0]
    squares = (far / graph.precision_rho[:, 0]) ** 2 + (angle / graph.precision_theta[:, 0]) ** 2
    weights = (-0.5 * squares).exp()
    if graph.own_vectors:
        sums = (weights / weights.sum(2, keepdim=True)).sum(1)
        return torch.stack([torch.diag(own) for own in sums.T], 2)
    return weights / weights.sum(1, keepdim=True)


def word_edges(graph, words, parse):
    """`exp(smooth * w_i . w_j)` of words that are joined, all or by a parse, normalised over j."""
    itself = torch.eye(len(words), dtype=torch.bool)
    joined = torch.ones_like(itself) if parse is None else itself.clone()
    for head, dependent in [] if parse is None else parse.tolist():
        if 0 < head < len(words) and 0 < dependent < len(words):
            joined[head, dependent] = joined[dependent, head] = True
    weights = (graph.smooth * words @ words.T).exp() * (itself if graph.own_vectors else joined)
    return (weights / weights.sum(1, keepdim=True))[..., None]


def matched(match, nodes, seen, edges, smooth):
    """`mean_i out_2(tanh(out_1(h_i)))`, `h_i = concat_k(W_k sum_j e_ijk m_j + b_k)`."""
    blocks = match.convolutions[0].in_features
    looked_at = attended(seen, nodes, smooth).unflatten(1, (blocks, -1))
    matching = cosine_similarity(nodes.unflatten(1, (blocks, -1)), looked_at, dim=2)
    by_kernel = edges.expand(-1, -1, len(match.convolutions)).unbind(2)
    layers = zip(match.convolutions, by_kernel, strict=True)
    hidden = torch.cat([layer(own @ matching) for layer, own in layers], 1)
    return match.out_2(match.out_1(hidden).tanh()).mean()


def gsmn(model, images, texts, side):
    """The sum of both sides."""
    head = model.head
    found = torch.zeros(len(images), len(texts), dtype=images[0].dtype)
    for i, regions in enumerate(images):
        of_regions = region_edges(model.image.pool, side["boxes"][i].to(regions))
        for t, words in enumerate(texts):
            parse = side["dependencies"][t] if "dependencies" in side else None
            of_words = word_edges(model.text.pool, words, parse)
            visual = matched(head.visual, regions, words, of_regions, head.smooth)
            found[i, t] = visual + matched(head.textual, words, regions, of_words, head.smooth)
    return found


def crossing(matching, others, alpha):
    """Where two normal densities meet, one of them scaled by alpha; None if nowhere."""
    (mean, other_mean), (std, other_std) = (matching.mean(), others.mean()), (matching.std(), others.std())
    a = std**2 - other_std**2
    b = 2 * (mean * other_std**2 - other_mean * std**2)
    c = (other_mean * std) ** 2 - (mean * other_std) ** 2
    c = c + 2 * (std * other_std) ** 2 * (other_std / (alpha * std) + 1e-8).log()
    inside = b**2 - 4 * a * c
    return float((-b + inside.sqrt()) / (2 * a + 1e-10)) if inside > 0 else None


def naaf(model, images, texts, side):
    """The mean of `n + f + r` over words. Text by text, the longest first: in training each changes the threshold."""
    head, columns = model.head, {}
    limits = head.thresholds
    threshold, safe = limits.both().tolist()
    matching, others = texts[0].new_zeros(0), texts[0].new_zeros(0)

    def score(regions, words, threshold):
        over = regions @ words.T - threshold
        best = over.amax(0)
        judged = best
        if not head.training and head.intra_lambda is not None:
            judged = (head.intra_lambda * words @ words.T).softmax(1) @ best
        seen = ((head.smooth * over).exp() * (over > 0)).T @ regions
        features = (words * seen).sum(1) / seen.norm(dim=1).clamp(min=1e-8)
        looked_at = (words * attended(regions, words, head.smooth)).sum(1)
        return (best * (judged < 0) + features + looked_at).mean()

    for t in sorted(range(len(texts)), key=lambda t: -len(texts[t])):
        at = threshold if head.training else safe
        columns[t] = torch.stack([score(own, texts[t], at) for own in images])
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


EQUATIONS = {
    StackedAttention: scan,
    RecurrentAttention: imram,
    MessagePassing: camp,
    SimilarityHead: sgraf,
    ConfidentReasoning: cmcan,
    GraphMatching: gsmn,
    NegativeAwareAttention: naaf,
}
