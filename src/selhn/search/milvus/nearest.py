"""The best rows that Milvus knows, and that stand the filter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.search.items import Kind
from selhn.search.milvus.rows import Row, ordered, record_of
from selhn.search.milvus.store import MOST_HITS, MilvusStore, Searching, Which
from selhn.search.milvus.where import milvus_expression
from selhn.search.where import Filter

COLLECTIONS: Mapping[Kind, Which] = {"image": "images", "text": "texts"}


def nearest_rows(
    store: MilvusStore, searching: Searching, queries: Float[Tensor, "Q d"], kind: Kind, k: int, filter: Filter | None
) -> list[list[Row]]:
    """The k best rows of every query, equal ones in the order in which they were added.

    More are asked for until so many stand the filter, and no other row can be equal to the last of them.
    """
    found: list[list[Row]] = [[] for _ in queries]
    waiting, limit, expression = list(range(len(queries))), min(k + 16, MOST_HITS), milvus_expression(filter)
    while waiting:
        answers = store.nearest(COLLECTIONS[kind], queries[waiting], limit, expression, searching)
        left = []
        for query, rows in zip(waiting, answers):
            kept = _standing(store, rows, kind, filter)
            found[query] = kept[:k]
            if len(rows) < limit or (len(kept) >= k and rows[-1].score < kept[k - 1].score):
                continue
            if limit < MOST_HITS:
                left.append(query)
            elif len(kept) < k:
                found[query] = _looked_through(store, queries[query], kind, k, filter)
        waiting, limit = left, min(4 * limit, MOST_HITS)
    return found


def _looked_through(
    store: MilvusStore, query: Float[Tensor, " d"], kind: Kind, k: int, filter: Filter | None
) -> list[Row]:
    """The same by looking at every row: where a filter leaves none of the nearest that Milvus gives."""
    best: list[Row] = []
    walk = store.rows(COLLECTIONS[kind], milvus_expression(filter), vectors=True)
    while some := list(islice(walk, 1000)):
        vectors = torch.stack([row.vector for row in some if row.vector is not None])
        scored = [replace(row, score=score, vector=None) for row, score in zip(some, (vectors @ query).tolist())]
        best = ordered([*best, *_standing(store, scored, kind, filter)])[:k]
    return best


def _standing(store: MilvusStore, rows: Sequence[Row], kind: Kind, filter: Filter | None) -> list[Row]:
    """Rows for which the filter holds; texts only of images that are there with them."""
    kept = [row for row in rows if filter is None or filter(record_of(row))]
    if kind == "text":
        images = store.get("images", (row.owner for row in kept))
        kept = [row for row in kept if row.owner in images and images[row.owner].content == row.content]
    return ordered(kept)
