"""The answers to queries: those that find the same kind of thing by the same filter are looked for together."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from jaxtyping import Float
from torch import Tensor

from selhn.models import AbstractMatcher, in_eval_mode
from selhn.search.fit import Fit
from selhn.search.items import Hit
from selhn.search.query import Query, encode_queries
from selhn.search.stores.store import Store
from selhn.search.where import Filter, Where

AT_ONCE = 256
Reader = Callable[[Where | None], Filter | None]
LookUp = Callable[[list[str]], Float[Tensor, "n d"]]


def answer(
    model: AbstractMatcher, store: Store, queries: Sequence[Query], vectors: LookUp, fit: Fit | None, read: Reader
) -> list[list[Hit]]:
    """The best items for each query; `vectors` looks items up, `fit` says which match, `read` reads filters."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault((query.find, repr(query.where)), []).append(row)
    answers: list[list[Hit]] = [[] for _ in queries]
    with in_eval_mode(model):
        for rows in groups.values():
            for first in range(0, len(rows), AT_ONCE):
                some = rows[first : first + AT_ONCE]
                for row, hits in zip(some, _together(model, store, [queries[row] for row in some], vectors, read)):
                    answers[row] = hits if fit is None else fit.judge(queries[row], hits)
    return answers


def _together(
    model: AbstractMatcher, store: Store, queries: Sequence[Query], vectors: LookUp, read: Reader
) -> Iterator[list[Hit]]:
    find, filter = queries[0].find, read(queries[0].where)
    encoded = encode_queries(model, queries, store.device, vectors)
    # One more, because the item of `like` is not an answer.
    for query, found in zip(queries, store.nearest(encoded, find, 1 + max(query.k for query in queries), filter)):
        yield list(islice((hit for hit in found if find == "text" or hit.id != query.like), query.k))
