"""Queries against a snapshot: encoded once, scored block by block, answered with hits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.search.encoding import encode_queries_of_images, encode_queries_of_text
from selhn.search.items import Hit, Kind, Query, checked_weights
from selhn.search.nearest import Best, nearest, top
from selhn.search.segment import Part
from selhn.search.snapshot import Snapshot
from selhn.search.where import Filter

QUERIES_AT_ONCE = 256
MODALITY: Mapping[str, Kind] = {"text": "text", "image": "image", "like": "image"}


@runtime_checkable
class Candidates(Protocol):
    """What finds rows that are probably among the best of the first parts of an index."""

    @property
    def kind(self) -> str:
        """What it is called."""
        ...

    @property
    def num_parts(self) -> int:
        """How many parts it knows."""
        ...

    def propose(
        self, queries: Float[Tensor, "Q d"], k: int, mask: Bool[Tensor, " n"] | None
    ) -> Int[Tensor, "Q c"] | None:
        """Rows, -1 where there are fewer; None where looking at all of them is better."""
        ...


class Asked:
    """Queries as vectors: for each kind of part a vector and a weight a query, 0 where a query has no such part."""

    def __init__(
        self,
        model: AbstractMatcher,
        width: int,
        queries: Sequence[Query],
        device: torch.device,
        of_items: Callable[[list[str]], Float[Tensor, "n d"]],
    ):
        self.model, self.number = model, len(queries)
        self._encode: Mapping[str, Callable[[list[Any]], Float[Tensor, "n d"]]] = {
            "text": partial(encode_queries_of_text, model),
            "image": partial(encode_queries_of_images, model),
            "like": of_items,
        }
        self.vectors: dict[str, Float[Tensor, "Q d"]] = {}
        self.weights: dict[str, Float[Tensor, " Q"]] = {}
        parts = [parts_of(query) for query in queries]
        weights = [checked_weights(query, own) for query, own in zip(queries, parts)]
        for part in MODALITY:
            rows = [row for row, own in enumerate(parts) if part in own]
            if rows:
                encoded = self._encode[part]([getattr(queries[row], part) for row in rows]).to(device)
                vectors = encoded.new_zeros(self.number, width)
                vectors[rows] = encoded
                self.vectors[part] = vectors
                self.weights[part] = torch.tensor([own.get(part, 0.0) for own in weights], device=device)

    @cached_property
    def products(self) -> Float[Tensor, "Q d"] | None:
        """One vector a query whose products are the scores, where the model scores by products."""
        if not self.model.is_embedding:
            return None
        return torch.stack([self.weights[part][:, None] * self.vectors[part] for part in self.vectors]).sum(0)

    def score(self, block: Float[Tensor, "n d"], wanted: Kind) -> Float[Tensor, "Q n"]:
        """Across modalities the model's own score, within one the product of vectors; several parts are added up."""
        if self.products is not None:
            return self.products @ block.T
        scores = []
        for part, vectors in self.vectors.items():
            if MODALITY[part] == wanted:
                found = vectors @ block.T
            elif wanted == "image":
                found = self.model.score(block, vectors).T
            else:
                found = self.model.score(vectors, block)
            scores.append(self.weights[part][:, None] * found)
        return torch.stack(scores).sum(0)


def answer(
    model: AbstractMatcher,
    snapshot: Snapshot,
    queries: Sequence[Query],
    k: int,
    find: Kind | None = None,
    filter: Filter | None = None,
    candidates: Mapping[Kind, Candidates] | None = None,
    device: torch.device | None = None,
) -> list[list[Hit]]:
    """The k best hits of every query."""
    device = device or torch.device("cpu")

    def of_items(names: list[str]) -> Float[Tensor, "n d"]:
        places = [snapshot.place(name) for name in names]
        return torch.cat([snapshot.parts[number].segment.images.take(slice(row, row + 1)) for number, row in places])

    def nearest_hits(some: Sequence[Query], kind: Kind, number: int) -> Iterable[Iterable[Hit]]:
        asked = Asked(model, snapshot.identity.width, some, device, of_items)
        with torch.autocast(device.type, enabled=asked.products is None and torch.is_autocast_enabled(device.type)):
            best = best_rows(asked, snapshot, kind, number, filter, (candidates or {}).get(kind))
        for scores, rows in zip(best.scores.tolist(), best.rows.tolist()):
            yield (snapshot.hit(kind, row, score) for score, row in zip(scores, rows) if row >= 0)

    with in_eval_mode(model):
        return answers_by_kind(queries, k, find, snapshot.has_texts, nearest_hits)


def answers_by_kind(
    queries: Sequence[Query],
    k: int,
    find: Kind | None,
    has_texts: Callable[[], bool],
    nearest_hits: Callable[[Sequence[Query], Kind, int], Iterable[Iterable[Hit]]],
) -> list[list[Hit]]:
    """The k best hits of every query, some hundred at a time that ask for the same kind."""
    if not isinstance(k, int) or k < 1:
        raise SelhnError(f"k must be at least 1, got {k}")
    if find not in (None, "image", "text"):
        raise SelhnError(f'find must be "image" or "text", got {find!r}')
    wanted = [find or default_kind(query, has_texts) for query in queries]
    hits: list[list[Hit]] = [[] for _ in queries]
    kinds: tuple[Kind, ...] = ("image", "text")
    for kind in kinds:
        rows = [row for row, own in enumerate(wanted) if own == kind]
        for first in range(0, len(rows), QUERIES_AT_ONCE):
            some = rows[first : first + QUERIES_AT_ONCE]
            # One more, for the item that is asked with is no answer.
            for row, found in zip(some, nearest_hits([queries[row] for row in some], kind, k + 1)):
                other = (hit for hit in found if kind == "text" or hit.id != queries[row].like)
                hits[row] = list(islice(other, k))
    return hits


def best_rows(
    asked: Asked, snapshot: Snapshot, kind: Kind, k: int, filter: Filter | None, candidates: Candidates | None
) -> Best:
    """The best rows of all parts: of the first by what `candidates` proposes, scored exactly, of the others exactly."""
    best, first_rows, done = Best.nothing(asked.number), snapshot.first_rows(kind), 0
    masks = [chosen(part, kind, filter) for part in snapshot.parts]
    if candidates is not None and asked.products is not None:
        done = candidates.num_parts
        proposed = candidates.propose(asked.products.cpu(), k, _joined(masks[:done], snapshot.parts[:done], kind))
        if proposed is None:
            done = 0
        else:
            best = _rescored(asked, snapshot, kind, proposed, k)
    numbers = range(done, len(snapshot.parts))
    places = ((first_rows[n], snapshot.parts[n].segment.vectors(kind), masks[n]) for n in numbers)
    return best.joined(nearest(lambda block: asked.score(block, kind), places, k, asked.number), k)


def _rescored(asked: Asked, snapshot: Snapshot, kind: Kind, rows: Int[Tensor, "Q c"], k: int) -> Best:
    """Proposed rows in the order of their exact scores."""
    first_rows = torch.tensor(snapshot.first_rows(kind))
    every = rows[rows >= 0].unique()
    number = torch.searchsorted(first_rows, every, right=True) - 1
    scores = torch.full((asked.number, len(every)), -torch.inf)
    for part in number.unique().tolist():
        here = number == part
        vectors = snapshot.parts[part].segment.vectors(kind)
        local = (every[here] - first_rows[part]).to(vectors.rows.device)
        scores[:, here] = asked.score(vectors.take(local), kind).cpu()
    if len(every) == 0:
        return Best.nothing(asked.number)
    query, place = (rows >= 0).nonzero(as_tuple=True)
    not_proposed = torch.ones(scores.shape, dtype=torch.bool)
    not_proposed[query, torch.searchsorted(every, rows[query, place])] = False
    best = top(scores.masked_fill(not_proposed, -torch.inf), k)
    return Best(best.scores, every[best.rows].masked_fill(best.scores == -torch.inf, -1))


def chosen(part: Part, kind: Kind, filter: Filter | None) -> Bool[Tensor, " rows"] | None:
    """Which rows of a part count: those that are there and for which the filter holds; None for all."""
    if filter is None:
        return part.mask(kind)
    return part.segment.items_of(kind, part.alive & part.segment.chosen(filter))


def _joined(masks: Sequence[Bool[Tensor, " _"] | None], parts: Sequence[Part], kind: Kind) -> Bool[Tensor, " n"] | None:
    if all(mask is None for mask in masks):
        return None
    pairs = zip(masks, parts)
    return torch.cat(
        [torch.ones(len(part.segment.vectors(kind)), dtype=torch.bool) if m is None else m for m, part in pairs]
    )


def parts_of(query: Query) -> list[str]:
    """What a query asks with."""
    parts = [part for part in MODALITY if getattr(query, part) is not None]
    if not parts:
        raise SelhnError("the query is empty: give a text, an image, or the id of an item")
    return parts


def default_kind(query: Query, has_texts: Callable[[], bool]) -> Kind:
    """An image by itself asks for texts, where there are any; all else asks for images."""
    return "text" if parts_of(query) == ["image"] and has_texts() else "image"
