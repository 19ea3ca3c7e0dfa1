"""Recurrent encoders, pooling and attention, one step, position, channel or fragment at a time, from their equations.

Scores of cross-attention, pair by pair, are in `pair_oracle`.
"""

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
    """The vectors of the regions of every image and of the words of every text, of length 1 in most models."""
    width = model.image.fc.out_features
    scaled = length_one if model.image.normed else lambda x: x
    images = [
        torch.stack([scaled(model.image.fc(x)) for x in regions[mask]])
        for regions, mask in zip(batch.regions, batch.region_mask, strict=True)
    ]
    texts = []
    for tokens, mask in zip(batch.tokens, batch.token_mask, strict=True):
        words = [model.text.words.embed.weight[t] for t in tokens[mask]]
        texts.append(torch.stack([scaled(h) for h in both_ways(model.text.words.rnn, words, width)]))
    return images, texts
