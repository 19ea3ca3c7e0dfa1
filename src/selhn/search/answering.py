"""Answers queries. Those with the same filter that look for the same kind of thing are searched together."""

from collections.abc import Callable, Iterable, Sequence

from jaxtyping import Float
from torch import Tensor

from selhn.search.filters import Filter
from selhn.search.fit import Fit
from selhn.search.items import Hit, whole
from selhn.search.query import Query, encode_queries
from selhn.search.stores.store import Store
from selhn.search.where import Where
from selhn.towers import AbstractTowers

AT_ONCE, MOST_ROWS = 256, 4_000
"""Queries encoded together; and most answers requested, even if moments of videos then leave fewer than k."""
Reader = Callable[[Where | None], Filter | None]
LookUp = Callable[[list[str]], Float[Tensor, "n d"]]


def answer(
    towers: AbstractTowers,
    store: Store,
    queries: Sequence[Query],
    vectors: LookUp,
    fit: Fit | None,
    read: Reader,
) -> list[list[Hit]]:
    """The best items for each query; `vectors` looks items up, `fit` says which match, `read` reads filters."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault((query.find, repr(query.where)), []).append(row)
    answers: list[list[Hit]] = [[] for _ in queries]
    for rows in groups.values():
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            found = _together(towers, store, [queries[row] for row in some], vectors, read)
            for row, hits in zip(some, found):
                answers[row] = hits if fit is None else fit.judge(queries[row], hits)
    return answers


def _together(
    towers: AbstractTowers, store: Store, queries: Sequence[Query], vectors: LookUp, read: Reader
) -> list[list[Hit]]:
    find, filter = queries[0].find, read(queries[0].where)
    encoded = encode_queries(towers, queries, store.device, vectors)
    k = 1 + max(query.k for query in queries)  # one more, because the item of `like` is not an answer
    while True:
        nearest = store.nearest(encoded, find, k, filter)
        answers = [_best_of_each(query, found) for query, found in zip(queries, nearest)]
        complete = (len(hits) == query.k or number < k for query, (hits, number) in zip(queries, answers))
        if all(complete) or k > MOST_ROWS:
            return [hits for hits, _ in answers]
        k *= 4  # the moments of a few videos have taken the places of other items


def _best_of_each(query: Query, found: Iterable[Hit]) -> tuple[list[Hit], int]:
    """The best items in order, with only the best moment of each video, and how many hits were read."""
    hits: list[Hit] = []
    seen = {whole(query.like)} if query.like is not None and query.find != "text" else set()
    number = 0
    for hit in found:
        number += 1
        if query.find == "text" or whole(hit.id) not in seen:
            seen.add(whole(hit.id))
            hits.append(hit)
        if len(hits) == query.k:
            break
    return hits, number
