"""Recurrent encoders, pooling and attention, one step, position, channel or pair at a time, from their equations."""

import math

import torch


def gru_step(cell, x, h):
    """One step of a GRU, written from its equations."""
    gates_x = x @ cell.weight_ih_l0.T + cell.bias_ih_l0
    gates_h = h @ cell.weight_hh_l0.T + cell.bias_hh_l0
    (rx, zx, nx), (rh, zh, nh) = gates_x.chunk(3), gates_h.chunk(3)
    reset, update = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
    return (1 - update) * torch.tanh(nx + reset * nh) + update * h


def run_gru(cell, xs, width):
    states, h = [], torch.zeros(width, dtype=xs[0].dtype)
    for x in xs:
        h = gru_step(cell, x, h)
        states.append(h)
    return states


def both_ways(rnn, xs, width):
    ahead, back = run_gru(rnn.ahead, xs, width), run_gru(rnn.back, xs[::-1], width)[::-1]
    return [(a + b) / 2 for a, b in zip(ahead, back, strict=True)]


def pool(gpo, rows):
    """GPO of one set by the paper, one position and one channel at a time."""
    places = []
    for k in range(len(rows)):
        angles = [k / 10000 ** (2 * j / 32) for j in range(16)]
        place = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        places.append(torch.tensor(place, dtype=rows[0].dtype))
    logits = torch.stack([gpo.linear.weight[0] @ h for h in both_ways(gpo.gru, places, 32)]) / 0.1
    weights = logits.exp() / logits.exp().sum()
    stacked = torch.stack(rows)
    channels = [sorted(stacked[:, c].tolist(), reverse=True) for c in range(stacked.shape[1])]
    return torch.stack([sum(w * v for w, v in zip(weights, channel, strict=True)) for channel in channels])


def length_one(x):
    return x / ((x * x).sum().sqrt() + 1e-8)


def attend(queries, contexts, smooth, focus=None):
    """What each query fragment of one pair attends to, one fragment at a time (SCAN; with a focus, BFAN)."""

    def activated(c, q):
        s = c @ q
        return s if s > 0 else 0.1 * s

    table = [[activated(c, q) for q in queries] for c in contexts]
    table = [[a / (sum(b * b for b in row).sqrt() + 1e-8) for a in row] for row in table]
    attended = []
    for column in range(len(queries)):
        weights = torch.stack([row[column] * smooth for row in table])
        weights = weights.exp() / weights.exp().sum()
        if focus is not None:
            confidence = torch.ones_like(weights) if focus == "equal" else weights.detach().sqrt()
            # Fragment k is kept when sum over j of g_j (x_k - x_j) is above 0.
            keep = [sum(g * (x - y) for g, y in zip(confidence, weights, strict=True)) > 0 for x in weights]
            weights = weights * torch.tensor(keep, dtype=weights.dtype)
            weights = weights / weights.sum()
        attended.append(sum(w * c for w, c in zip(weights, contexts, strict=True)))
    return attended


def cosine(a, b):
    return a @ b / (a.norm() * b.norm())


def cosines(queries, contexts, smooth, focus=None):
    attended = attend(queries, contexts, smooth, focus)
    return [cosine(q, x) for q, x in zip(queries, attended, strict=True)]


def fragments(model, batch):
    """Regions of every image and words of every text as lists of unit vectors."""
    width = model.image.fc.out_features
    images = [
        [length_one(model.image.fc(x)) for x in r[m]] for r, m in zip(batch.regions, batch.region_mask, strict=True)
    ]
    texts = []
    for tokens, mask in zip(batch.tokens, batch.token_mask, strict=True):
        words = [model.text.words.embed.weight[t] for t in tokens[mask]]
        texts.append([length_one(h) for h in both_ways(model.text.words.rnn, words, width)])
    return images, texts


def batch_norm(rows, norm, training):
    """Rows of one channel, with their own statistics or the running ones."""
    mean, variance = norm
    if training:
        mean, variance = rows.mean(), rows.var(correction=0)
    return (rows - mean) / (variance + 1e-5).sqrt()


def scaled(rows, norm, channel, training):
    running = norm.running_mean[channel], norm.running_var[channel]
    return batch_norm(rows, running, training) * norm.weight[channel] + norm.bias[channel]


def pooled(pool, items, training=False):
    """The vector for the whole of every item (SGRAF); images have a batch norm, whose channels are region places."""
    linear, linear_of_mean = pool.local[0], pool.mean[0]
    local = [torch.stack([linear(x) for x in item]) for item in items]
    mean = torch.stack([linear_of_mean(sum(item) / len(item)) for item in items])
    if pool.num_regions is not None:
        stacked = torch.stack(local)
        places = [scaled(stacked[:, k], pool.local[1], k, training) for k in range(pool.num_regions)]
        local = list(torch.stack(places, 1))
        mean = torch.stack([scaled(mean[:, c], pool.mean[1], c, training) for c in range(mean.shape[1])], 1)
    out = []
    for rows, own_mean, item in zip(local, mean, items, strict=True):
        weights = torch.stack([pool.common(row.tanh() * own_mean.tanh())[0] for row in rows]).exp()
        out.append(length_one(sum(w * x for w, x in zip(weights / weights.sum(), item, strict=True))))
    return out


def similarity_nodes(head, image, whole_image, text, whole_text):
    """The nodes of one pair (SGRAF)."""
    nodes = [length_one(head.whole((whole_image - whole_text) ** 2))]
    for word, seen in zip(text, attend(text, image, head.smooth), strict=True):
        nodes.append(length_one(head.local((length_one(seen) - word) ** 2)))
    return torch.stack(nodes)


def reasoned(steps, nodes):
    """SGR with all its products, biases and nodes."""
    for step in steps:
        edges = ((step.query(nodes)) @ (step.key(nodes)).T).exp()
        nodes = (step.value(edges / edges.sum(1, keepdim=True) @ nodes)).clamp(min=0)
    return nodes[0]


def filtered(reasoning, node_sets, training):
    """SAF for the pairs of one text with all images, whose entries share one batch norm; updates it in training."""
    norm = reasoning.norm
    entries = torch.cat([reasoning.attention(nodes)[:, 0] for nodes in node_sets])
    gates = scaled(entries, norm, 0, training).sigmoid().split([len(nodes) for nodes in node_sets])
    if training:
        with torch.no_grad():
            norm.running_mean.copy_(0.9 * norm.running_mean + 0.1 * entries.mean())
            norm.running_var.copy_(0.9 * norm.running_var + 0.1 * entries.var(correction=1))
            norm.num_batches_tracked += 1
    return [length_one((gate / (gate.sum() + 1e-8)) @ nodes) for gate, nodes in zip(gates, node_sets, strict=True)]


def sgraf_scores(model, batch, training=False):
    """SGR or SAF text by text, the longest first, as the authors' program goes through a sorted batch."""
    images, texts = fragments(model, batch)
    whole_images = pooled(model.image.pool, images, training)
    whole_texts = pooled(model.text.pool, texts)
    head, columns = model.head, {}
    for t in sorted(range(len(texts)), key=lambda t: -len(texts[t])):
        pairs = [
            similarity_nodes(head, i, v, texts[t], whole_texts[t]) for i, v in zip(images, whole_images, strict=True)
        ]
        if hasattr(head.reasoning, "steps"):
            vectors = [reasoned(head.reasoning.steps, nodes) for nodes in pairs]
        else:
            vectors = filtered(head.reasoning, pairs, training)
        columns[t] = torch.stack([head.last(x)[0].sigmoid() for x in vectors])
    return torch.stack([columns[t] for t in range(len(texts))], 1)
