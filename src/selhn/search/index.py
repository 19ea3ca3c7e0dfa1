"""The index: a collection that is encoded once, changed item by item, and searched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import HIGHER, named_object
from selhn.base.types import StoredPrecision
from selhn.data import Split
from selhn.search.albums import Albums
from selhn.search.answering import answer
from selhn.search.filters import Filter, found_or_explained, without_moments
from selhn.search.fit import Fit, find_fit
from selhn.search.hits import Hits
from selhn.search.items import Hit, Item, Kind, Order, Record, moment_ids, split_items
from selhn.search.query import Asked, Picture, Query
from selhn.search.stores import SegmentStore, is_uri, store_for
from selhn.search.stores.store import ENCODED_AT_ONCE, ApproximateKind, Identity, OnExisting, Store, Stored
from selhn.search.where import Where, read_filter
from selhn.towers import AbstractTowers, open_towers_named_in_file


class Index:
    """Images and their texts, encoded once; search in all directions, exact unless `approximate` was called.

    A path is a folder or the URI of a server, with #NAME for one of several indices: http://host:19530 for Milvus,
    "pictures.db" for Milvus Lite, postgresql://host/database. With a path every change is stored when its call
    returns, and survives a kill. One process writes to a folder at a time, several to a server; others call `refresh`.
    """

    def __init__(self, towers: AbstractTowers, store: Store):
        self.towers, self.store = towers, store

    @classmethod
    def create(
        cls,
        towers: AbstractTowers,
        path: str | Path | None = None,
        *,
        precision: StoredPrecision = "float32",
        about: Mapping[str, Any] | None = None,
        keep_towers: bool = True,
    ) -> "Index":
        """An empty index, in memory if there is no path.

        Args:
            precision: of the vectors; int8 has one scale per vector, and servers have float32 only.
            about: notes as JSON, stored with the index.
            keep_towers: whether the towers are saved in the folder; servers never keep them. Without them `load`
                needs them, unless `about` names some that `open_towers` knows, {"model": "ready"}.
        """
        identity = Identity.of(towers, precision, about or {})
        return cls(towers, store_for(path).create(path, identity, towers, keep_towers))

    @classmethod
    def build(
        cls,
        towers: AbstractTowers,
        items: Split | Iterable[Item],
        path: str | Path | None = None,
        *,
        precision: StoredPrecision = "float32",
    ) -> "Index":
        """Encode a split, or items.

        In a folder, an existing index is replaced in one step when the new one is complete. An index that
        cannot be opened (damaged, of another version) is an error and is left alone. A killed build resumes
        if split and towers are the same. On a server an existing index is an error.
        """
        if path is None or is_uri(path):
            index = cls.create(towers, path, precision=precision)
            index.add(split_items(items) if isinstance(items, Split) else items)
            return index
        return cls(towers, SegmentStore.build(path, Identity.of(towers, precision, {}), towers, items))

    @classmethod
    def load(cls, path: str | Path, towers: AbstractTowers | None = None) -> "Index":
        """Open an index. `towers` are needed if the index neither has nor names some."""
        store: Store = store_for(path).open(path)
        towers = towers or store.kept_towers() or open_towers_named_in_file(store.identity.about.get("model"))
        if towers is None:
            name = store.identity.model_name
            raise SelhnError(f"{path} has no model ({name} made it): give it with --model, or towers=")
        store.identity.require(towers, path)
        return cls(towers, store)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is an index in a folder or on a server."""
        return store_for(path).exists(path)

    @property
    def path(self) -> Path | str | None:
        """The folder as a Path, the URI of a server as a string, or None in memory."""
        return self.store.path

    @property
    def location(self) -> str:
        return "memory" if self.path is None else str(self.path)

    def __str__(self) -> str:
        identity, how = self.identity, "" if self.found_by == "exact" else f", candidates by {self.found_by}"
        what = f"{len(self):,} images, {self.num_texts:,} texts, {identity.width} numbers each in {identity.precision}"
        return f"{self.location}: {what}, by {identity.model_name}{how}"

    def __repr__(self) -> str:
        return f"Index({self})"

    @property
    def identity(self) -> Identity:
        return self.store.identity

    @property
    def about(self) -> Mapping[str, Any]:
        return self.identity.about

    @property
    def generation(self) -> int:
        """A number that differs after every change that this process knows of."""
        return self.store.generation

    @property
    def num_texts(self) -> int:
        return self.store.count("text")

    @property
    def found_by(self) -> str:
        """What proposes answers; "exact" if every vector is compared."""
        return self.store.found_by

    def __len__(self) -> int:
        return self.store.count()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.store.get([name])

    def ids(self) -> list[str]:
        """The ids of all items in the order in which they were added; Milvus has no order."""
        return self.store.ids()

    def get(self, name: str) -> Record:
        return self._known([name])[0].record

    def records(
        self, where: Where | None = None, order: Order | None = None, *, first: int = 0, moments: bool = True
    ) -> Iterator[Record]:
        """Captions and metadata of all items that match a filter.

        Args:
            order: "newest" or "oldest" first, by the metadata `taken`, or `modified` if there is none; items
                without either come last. By default, the order of `ids`. Milvus reads all records to sort them.
            first: number of items to skip.
            moments: whether to list each moment of a video; otherwise a video is one item.
        """
        found = self.store.scan(self._filter(where, moments), order, first)
        return found_or_explained(found, self._filter(where), self.store.scan)

    def count(self, where: Where | None = None, *, moments: bool = True) -> int:
        number = self.store.count("image", self._filter(where, moments))
        return number or len(list(self.records(where, moments=moments)))  # none: an unknown field is an error

    @overload
    def search(
        self,
        query: Asked | None = ...,
        k: int | None = ...,
        find: Kind | None = ...,
        *,
        text: str | None = ...,
        image: Picture | None = ...,
        like: str | None = ...,
        weights: Mapping[str, float] | None = ...,
        where: Where | None = ...,
    ) -> list[Hit]: ...
    @overload
    def search(
        self, query: list[Asked], k: int | None = ..., find: Kind | None = ..., *, where: Where | None = ...
    ) -> list[list[Hit]]: ...
    def search(
        self,
        query: Any = None,
        k: int | None = None,
        find: Kind | None = None,
        *,
        text: str | None = None,
        image: Picture | None = None,
        like: str | None = None,
        weights: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> Any:
        """The k best images for a text, an image, an item (`like`), or several of these at once.

        By position, a string that is the path of a file, "dog.jpg", is a picture; `text=` is always a text.
        With find="text", the best captions instead. The fields of `Query` explain the
        arguments; k is 5 unless given here or in the query. A list of queries is what `search_many` takes.
        """
        given: dict[str, Any] = {"text": text, "image": image, "like": like, "weights": weights}
        given = {name: value for name, value in given.items() if value is not None}
        if query is not None and given:
            raise SelhnError("the query is given twice: by position, or by text=, image= and like=, not both")
        if isinstance(query, list):
            return self.search_many(query, k, find, where=where)
        return self.search_many([Query(**given) if query is None else query], k, find, where=where)[0]

    def search_many(
        self,
        queries: Sequence[Asked],
        k: int | None = None,
        find: Kind | None = None,
        *,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """The answers to several queries; those with the same filter are encoded and scored together.

        `k`, `find` and `where` apply to all of them, instead of their own.
        """
        if isinstance(queries, str):
            raise SelhnError("the queries are one text: give a list of them, or call `search`")
        asked = [self._opened(Query.of(query, k, find, where)) for query in queries]
        answers = answer(self.towers, self.store, asked, self._vectors, self.fit, self._filter)
        found_by = {repr(query.where) for query, hits in zip(asked, answers) if hits}
        for query in asked:
            if query.where is not None and repr(query.where) not in found_by:
                next(self.records(query.where), None)  # an unknown field is an error
        return [Hits(hits, self._thumbnail) for hits in answers]

    def _opened(self, query: Query) -> Query:
        """The query with the vector of its picture."""
        is_picture = query.image is not None and not isinstance(query.image, Tensor | np.ndarray)
        return replace(query, image=self._library.vector(query.image)) if is_picture else query

    @cached_property
    def albums(self) -> Albums | None:
        """Named lists of items, which the filter `album = "Trip"` names; None if the index is not in a folder."""
        return Albums(self.path, self.store) if isinstance(self.path, Path) else None

    def _filter(self, where: Where | None, moments: bool = True) -> Filter | None:
        filter = None if where is None else read_filter(where)
        filter = filter if filter is None or self.albums is None else self.albums.resolve(filter)
        return filter if moments or not self.store.has_moments else without_moments(filter)

    @cached_property
    def fit(self) -> Fit | None:
        """Says which images match a text; None if nothing is known about the scores of the towers."""
        return find_fit(self.path, self.identity.model, self.towers.cutoff)

    @cached_property
    def _library(self) -> Any:
        return named_object(HIGHER["pictures"])(self, device=self.store.device)

    def _thumbnail(self, hit: Hit, size: int) -> bytes | None:
        return named_object(HIGHER["pictures"])(self).thumbnail(hit, size)  # folders may be new

    def add(self, items: Iterable[Item], existing: OnExisting = "refuse") -> int:
        """Encode and add items; returns how many were written.

        Items are encoded a few hundred at a time, and stored in a folder a few thousand at a time.

        Args:
            existing: what to do with an id that exists: "refuse", "skip" (the same call then resumes), or
                "replace". On a server, an unchanged item is not encoded again.
        """
        if existing not in get_args(OnExisting):
            raise SelhnError(f'existing is {existing!r}: choose "refuse", "skip" or "replace"')
        with self.store.writing():
            return self.store.put(self.store.encoded(self.towers, items, existing))

    def update(self, items: Iterable[Item]) -> int:
        """Replace items by others with the same ids; without regions or a vector an item keeps its image."""

        def known(items: Iterable[Item]) -> Iterator[Item]:
            walk = iter(items)
            while some := list(islice(walk, ENCODED_AT_ONCE)):
                for item, own in zip(some, self._vectors([item.id for item in some])):
                    given = item.regions if item.vector is None else item.vector
                    yield replace(item, vector=own.cpu()) if given is None else item

        return self.add(known(items), "replace")

    def delete(self, ids: Iterable[str]) -> int:
        """Remove items, and videos with their moments; returns how many. If an id is unknown, nothing is removed."""
        names = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
        with self.store.writing():
            moments = {one for known in self._known(names) for one in moment_ids(known.record)}
            self.store.delete([*names, *self.store.get(moments.difference(names))])
        return len(names)

    def approximate(self, kind: ApproximateKind = "auto") -> None:
        """Score only candidates from now on; in a folder FAISS proposes them (extra `faiss`).

        Args:
            kind: "hnsw", "ivf", "ivf_int8" (the last two only in a folder), "exact" for none, or "auto", by size.
                In a folder, items that are added later are all scored until it is called again.
        """
        if not self.towers.is_product and kind not in ("auto", "exact"):
            raise SelhnError(f"{self.towers.name} does not score by products of vectors: use exact search")
        self.store.approximate(kind if self.towers.is_product else "exact")

    def compact(self) -> None:
        """Reclaim the space of deleted items."""
        self._segments().compact()

    def check(self) -> None:
        """Read every byte of the folder, and refuse it if it is not what was written."""
        self._segments().check()

    def save(self, path: str | Path) -> None:
        """Copy an index that is in memory or in a folder; one that was at `path` is replaced in one step."""
        self._segments().save(path, self.towers)

    def embeddings(self) -> Iterator[tuple[list[Record], Float[Tensor, "n d"], Float[Tensor, "t d"]]]:
        """All records with the vectors of their images and captions, in blocks; only for a folder."""
        return self._segments().embeddings()

    def _segments(self) -> SegmentStore:
        if not isinstance(self.store, SegmentStore):
            raise SelhnError(f"{self.path} is on a server, which compacts and checks itself: use a folder")
        return self.store

    def refresh(self) -> None:
        self.store.refresh()

    def writing(self, wait: float = 0.0) -> AbstractContextManager[object]:
        """Hold the lock over several changes: no other process writes between them. See `Store.writing`."""
        return self.store.writing(wait)

    def to(self, device: torch.device | str) -> "Index":
        """Move the vectors of a folder to a device, and a torch model that stands in for towers."""
        self.towers.to(device)
        self.store.to(torch.device(device))
        return self

    def _known(self, names: Sequence[str], vectors: bool = False) -> list[Stored]:
        found = self.store.get(names, vectors)
        if missing := [name for name in names if name not in found]:
            raise NotFound(f"there is no item {str(missing[0])[:80]!r} in the index: `index.ids()` lists all")
        return [found[name] for name in names]

    def _vectors(self, names: list[str]) -> Float[Tensor, "n d"]:
        return torch.stack([one.vector for one in self._known(names, vectors=True) if one.vector is not None])
