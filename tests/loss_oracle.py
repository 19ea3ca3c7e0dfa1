"""Every loss once more as a double loop over Python numbers, from the formulas alone."""

import math


def hinge(negative, positive, margin):
    return max(negative - positive + margin, 0.0)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def softmax_triplet(negative, positive, temperature):
    return softplus((negative - positive) / temperature)


def triplet(p, negatives, f):
    return sum(hinge(s, p, f.margin) for s in negatives), True


def hn(p, negatives, f):
    if f.variant == "nca":
        return (softmax_triplet(max(negatives), p, f.temperature), True) if negatives else (0.0, False)
    return plain_hn(p, negatives, f)


def plain_hn(p, negatives, f):
    return (hinge(max(negatives), p, f.margin) if negatives else 0.0), True


def shn(p, negatives, f):
    if f.variant == "nca":
        below = [s for s in negatives if s <= p]
        return (softmax_triplet(max(below), p, f.temperature), True) if below else (0.0, False)
    below = [s for s in negatives if s < p]
    return (hinge(max(below), p, f.margin) if below else 0.0), True


def sct(p, negatives, f):
    if not negatives:
        return 0.0, f.variant == "hinge"
    n = max(negatives)
    if f.variant == "hinge":
        return (hinge(n, p, f.margin) if n < p else n), True
    if n > p or n > f.hard_threshold:
        return f.weight * n, True
    if n < p and n < f.hard_threshold:
        return softmax_triplet(n, p, f.temperature), True
    return 0.0, False


def selhn(p, negatives, f, batch):
    if not negatives:
        return 0.0, True
    gap = abs(max(negatives) - p)
    if gap > f.epsilon or (f.mine_at_epsilon and gap == f.epsilon):
        return hinge(max(negatives), p, f.margin), True
    over = batch if f.average_over == "batch" else len(negatives)
    return sum(hinge(s, p, f.margin) for s in negatives) / over, True


def warmup(p, negatives, f):
    if f._epoch < f.warmup_epochs:
        return triplet(p, negatives, f)
    return plain_hn(p, negatives, f)


def infonce(p, negatives, f):
    logits = [s / f.temperature for s in [p, *negatives]]
    largest = max(logits)
    return math.log(sum(math.exp(x - largest) for x in logits)) + largest - p / f.temperature, True


def siglip(p, negatives, f):
    if not negatives:
        return 0.0, True
    return softplus(-(p / f.temperature + f.bias)) + sum(softplus(s / f.temperature + f.bias) for s in negatives), True


def multi_positive(p, negatives, f, positives):
    if not negatives:
        return 0.0, True
    logits = [s / f.temperature for s in [*positives, *negatives]]
    largest = max(logits)
    log_sum = math.log(sum(math.exp(x - largest) for x in logits)) + largest
    return sum(log_sum - s / f.temperature for s in positives) / len(positives), True


def tal(p, negatives, f):
    if not negatives:
        return 0.0, True
    largest = max(negatives)
    above = f.temperature * math.log(sum(math.exp((s - largest) / f.temperature) for s in negatives))
    return hinge(largest + above, p, f.margin), True


def powers(coefficients, s):
    return sum(c * s**q for q, c in enumerate(coefficients))


def powers_slope(coefficients, s):
    return sum(c * q * s ** (q - 1) for q, c in enumerate(coefficients) if q)


def ssp(p, negatives, f):
    mined = [s for s in negatives if s > p - f.margin]
    if not mined or p >= f.positive_below:
        return 0.0, True
    of_positive = max(powers(f.positive, p), 0.0)
    if f.one_way and powers_slope(f.positive, p) > 0:
        of_positive = 0.0
    chosen = mined if f.mining == "average" else [max(mined)]
    of_negatives = [
        0.0 if f.one_way and powers_slope(f.negative, s) < 0 else max(powers(f.negative, s), 0.0) for s in chosen
    ]
    return f.weight * (of_positive + sum(of_negatives) / len(chosen)), True


def ncr(p, negatives, f, batch):
    if not negatives:
        return 0.0, True
    if f._epoch < f.warmup_epochs:
        over = batch if f.average_over == "batch" else len(negatives)
        return sum(hinge(s, p, f.margin) for s in negatives) / over, True
    return hinge(max(negatives), p, f.margin), True


def per_anchor(name, loss_fn, scores, image_ids=None):
    """(2, B) losses and (2, B) flags of the anchors that count in a mean."""
    batch = len(scores)
    ids = list(range(batch)) if image_ids is None else [int(i) for i in image_ids]
    formula = {
        "triplet": triplet, "hn": hn, "shn": shn, "sct": sct, "selhn": selhn, "warmup": warmup,
        "infonce": infonce, "siglip": siglip, "multi_positive": multi_positive, "tal": tal, "ssp": ssp, "ncr": ncr,
        "aoq": plain_hn, "meta_spn": plain_hn,
    }[name]  # fmt: skip
    extra = {"batch": batch} if name in ("selhn", "ncr") else {}
    losses, counted = [], []
    for row_of in (lambda i, j: scores[i][j], lambda i, j: scores[j][i]):
        pairs = []
        for i in range(batch):
            if name == "multi_positive":
                extra = {"positives": [row_of(i, j) for j in range(batch) if ids[j] == ids[i]]}
            negatives = [row_of(i, j) for j in range(batch) if ids[j] != ids[i]]
            pairs.append(formula(scores[i][i], negatives, loss_fn, **extra))
        losses.append([loss for loss, _ in pairs])
        counted.append([count for _, count in pairs])
    return losses, counted


def reduced(name, loss_fn, scores, image_ids=None):
    losses, counted = per_anchor(name, loss_fn, scores, image_ids)
    total, count = sum(map(sum, losses)), sum(map(sum, counted))
    return total if loss_fn.reduction == "sum" else total / max(count, 1)
