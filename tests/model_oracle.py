"""GRU and GPO one step, one position and one channel at a time, written from their equations."""

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
