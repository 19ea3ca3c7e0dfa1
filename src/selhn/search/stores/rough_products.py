"""Exact search of float16 vectors in two steps: float16 products say which rows may be the best, float32 decides.

Converting all rows to float32 takes longer than their products. The float16 product of a unit vector and a row is
off by less than `ERROR` times the length of the row: the query and the result are rounded, by 2^-11 each, and the
sum is float32. So rows more than twice that below the k-th best are not among the best k; all others are scored again.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear, normalize

from selhn.search.stores.vectors import Vectors

ERROR = 2.0**-9
MOST_AGAIN = 0.02
"""Largest share of rows that is scored again; beyond it, converting all rows in order is quicker."""
LONGEST = 1000.0


def rows_to_score(
    query: Float[Tensor, "1 d"],
    vectors: Sequence[Vectors],
    masks: Sequence[Bool[Tensor, " _"] | None],
    k: int,
) -> Int[Tensor, "1 c"] | None:
    """Numbers of the rows that include the k best for one query; None if scoring all rows is faster."""
    if any(own.rows.dtype != torch.float16 or own.rows.device.type != "cpu" for own in vectors):
        return None
    if k > MOST_AGAIN * sum(map(len, vectors)):  # before all rows are read for their lengths
        return None
    length, most = float(query.norm()), max((own.longest for own in vectors), default=0.0)
    if length == 0 or not 0 < most < LONGEST or not _sums_in_float32(query.shape[1]):
        return None
    short = (query / length).half()
    scores = torch.cat([linear(short, own.rows)[0] for own in vectors])
    for mask, part in zip(masks, scores.split(list(map(len, vectors)))):
        if mask is not None:
            part.masked_fill_(~mask, -torch.inf)
    kth = scores.topk(min(k, len(scores))).values[-1].float()
    rows = (scores.float() >= kth - 2 * ERROR * most).nonzero()[:, 0]
    few = len(rows) <= MOST_AGAIN * len(scores)
    return rows[None] if few and bool(kth.isfinite()) else None  # -inf: fewer than k rows are allowed


@lru_cache(maxsize=8)
def _sums_in_float32(width: int) -> bool:
    """Whether this processor adds float16 products up in float32: sums of positive numbers show it."""
    drawn = torch.rand(65, width, generator=torch.Generator().manual_seed(0))  # the caller's generator stays
    query, rows = normalize(drawn, dim=1).half().split([1, 64])
    return bool((linear(query, rows).float() - query.float() @ rows.float().T).abs().max() < ERROR / 2)
