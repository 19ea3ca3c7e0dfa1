"""The k highest scores among many vectors, a block at a time; equal scores keep the order of their rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import Damaged
from selhn.search.filters import Filter
from selhn.search.items import Kind
from selhn.search.query import QueryVectors
from selhn.search.stores.rough_products import rows_to_score
from selhn.search.stores.snapshot import Snapshot
from selhn.search.stores.vectors import Vectors

Score: TypeAlias = Callable[[Float[Tensor, "n d"]], Float[Tensor, "Q n"]]
"""The scores of all queries with some vectors; they are overwritten when the next are scored."""
# For at least this share of a block, it is quicker to score all and mask than to copy the rows together.
DENSE = 0.5
SCORES_AT_ONCE = 2**23
"""Number of scores that are collected before the best of them are picked."""


class Best(NamedTuple):
    """The best of every query, highest first; rows are -1 and scores -inf if there are fewer."""

    scores: Float[Tensor, "Q k"]
    rows: Int[Tensor, "Q k"]

    @classmethod
    def nothing(cls, num_queries: int) -> "Best":
        return cls(torch.empty(num_queries, 0), torch.empty(num_queries, 0, dtype=torch.int64))

    def joined(self, other: "Best", k: int) -> "Best":
        """The best of both; at equal scores those of this one come first."""
        scores, rows = torch.cat([self.scores, other.scores], 1), torch.cat([self.rows, other.rows], 1)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
        return Best(scores.gather(1, order), rows.gather(1, order))


def best_rows(queries: QueryVectors, snapshot: Snapshot, kind: Kind, k: int, filter: Filter | None) -> Best:
    """The best rows of a snapshot: of what FAISS proposes in its first segments, and of all other rows."""
    best, first_rows, done = Best.nothing(len(queries)), snapshot.first_rows[kind], 0
    masks = [segment.mask(kind, filter) for segment in snapshot.segments]
    candidates = snapshot.candidates.get(kind)
    if candidates is not None and queries.products is not None:
        covered, mask = list(zip(snapshot.segments, masks))[: candidates.parts], None
        if any(own is not None for _, own in covered):
            mask = torch.cat([_all(len(one.vectors[kind])) if own is None else own for one, own in covered])
        proposed = candidates.propose(queries.products.cpu(), k, mask)
        if proposed is not None:
            done, best = candidates.parts, _rescored(queries, snapshot, kind, proposed, k)
    if not done and queries.products is not None and len(queries) == 1:
        every = [segment.vectors[kind] for segment in snapshot.segments]
        proposed = rows_to_score(queries.products, every, masks, k)
        if proposed is not None:
            return _rescored(queries, snapshot, kind, proposed, k)
    numbers = range(done, len(snapshot.segments))
    places = ((first_rows[n], snapshot.segments[n].vectors[kind], masks[n]) for n in numbers)
    return best.joined(nearest(lambda block: queries.score(block, kind), places, k, len(queries)), k)


def _all(number: int) -> Bool[Tensor, " n"]:
    return torch.ones(number, dtype=torch.bool)


def _rescored(
    queries: QueryVectors, snapshot: Snapshot, kind: Kind, rows: Int[Tensor, "Q c"], k: int
) -> Best:
    """Proposed rows in the order of their exact scores."""
    first_rows, rows = torch.tensor(snapshot.first_rows[kind]), rows.sort(dim=1).values
    every = rows[rows >= 0].unique()
    if len(every) == 0:
        return Best.nothing(len(queries))
    number = torch.searchsorted(first_rows, every, right=True) - 1
    scores = torch.empty(len(queries), len(every))
    for part in number.unique().tolist():
        here = number == part
        vectors = snapshot.segments[part].vectors[kind]
        local = (every[here] - first_rows[part]).to(vectors.rows.device)
        scores[:, here] = queries.score(vectors.take(local), kind).cpu()
    own = scores.gather(1, torch.searchsorted(every, rows.clamp(min=every[0])))
    best = top(own.masked_fill(rows < 0, -torch.inf), k)
    return Best(best.scores, rows.gather(1, best.rows))


def nearest(
    score: Score, places: Iterable[tuple[int, Vectors, Bool[Tensor, " _"] | None]], k: int, num_queries: int
) -> Best:
    """The k best rows of several places: number of the first row, vectors, and a mask unless all rows count.

    Scores of several places are sorted together: picking from a few thousand takes as long as from many.
    """
    best, waiting, number = Best.nothing(num_queries), [], 0
    buffer: Float[Tensor, "r d"] | None = None
    for first, vectors, mask in places:
        buffer = vectors.buffer() if buffer is None else buffer
        for block, rows, allowed in _chosen_blocks(vectors, mask, first):
            waiting.append(_Looked(score(vectors.take(block, buffer)), rows, allowed))
            number += waiting[-1].scores.numel()
            if number > SCORES_AT_ONCE:
                best, waiting, number = best.joined(_best_of(waiting, k), k), [], 0
    if waiting:
        best = best.joined(_best_of(waiting, k), k)
    return Best(best.scores, best.rows.masked_fill(best.scores == -torch.inf, -1))


class _Looked(NamedTuple):
    """Scores of some rows, and which of them are allowed, unless all are."""

    scores: Float[Tensor, "Q n"]
    rows: range | Int[Tensor, " n"]
    allowed: Bool[Tensor, " n"] | None


def _best_of(looked: Sequence[_Looked], k: int) -> Best:
    scores = looked[0].scores if len(looked) == 1 else torch.cat([one.scores for one in looked], 1)
    # A finite sum means that all are finite; otherwise each is checked.
    if not bool(scores.sum().isfinite()) and not bool(scores.isfinite().all()):
        raise Damaged("vectors of the index contain NaN or infinity: restore a copy, or build it again")
    if any(one.allowed is not None for one in looked):
        allowed = [_all(one.scores.shape[1]) if one.allowed is None else one.allowed for one in looked]
        scores = scores.masked_fill(~torch.cat(allowed).to(scores.device), -torch.inf)
    found = top(scores, k)
    columns = found.rows.cpu()
    spans = [one.rows for one in looked if isinstance(one.rows, range)]
    if len(spans) == len(looked) and all(a.stop == b.start for a, b in zip(spans, spans[1:])):
        return Best(found.scores.cpu(), columns + spans[0].start)  # the usual case: nothing was left out
    return Best(found.scores.cpu(), torch.cat([torch.as_tensor(one.rows) for one in looked])[columns])


def top(scores: Float[Tensor, "Q n"], k: int) -> Best:
    """The k highest of each row, equal ones in the order of their columns."""
    k = min(k, scores.shape[1])
    found = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    last, columns = found.values[:, k - 1], found.indices[:, :k].clone()
    if found.values.shape[1] > k:
        # Among ties for the last place, topk picks arbitrary ones; take the first of them.
        for query in (last == found.values[:, k]).nonzero()[:, 0].tolist():
            better = (scores[query] > last[query]).nonzero()[:, 0]
            equal = (scores[query] == last[query]).nonzero()[: k - len(better), 0]
            columns[query] = torch.cat([better, equal])
    columns = columns.sort(dim=1).values
    order = scores.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    return Best(scores.gather(1, columns), columns)


def _chosen_blocks(
    vectors: Vectors, mask: Bool[Tensor, " n"] | None, first: int
) -> Iterator[tuple[slice | Int[Tensor, " m"], range | Int[Tensor, " m"], Bool[Tensor, " m"] | None]]:
    """What to take from the vectors, its row numbers counted from `first`, and which of them are allowed."""
    for block in vectors.blocks():
        rows, allowed = range(first + block.start, first + block.stop), None if mask is None else mask[block]
        chosen = None if allowed is None else allowed.nonzero()[:, 0] + block.start
        if chosen is None or len(chosen) >= DENSE * len(rows):
            yield block, rows, allowed
        elif len(chosen):
            yield chosen.to(vectors.rows.device), chosen + first, None
