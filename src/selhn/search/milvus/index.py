"""An index in Milvus, for what one machine does not hold: the same searches, and by default the same answers.

Vectors, captions and metadata lie in Milvus (see `store.py`), the model here. Queries are encoded here and searched
there by products; filters are handed over as far as Milvus can tell them (`where.py`), and what comes back is looked at
once more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.version import __version__
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.search.answering import Asked, answers_by_kind
from selhn.search.changes import ENCODED_AT_ONCE, OnExisting, named_model
from selhn.search.encoding import digest_of, require_same_model, require_vectors, width_of
from selhn.search.faiss_index import ApproximateKind
from selhn.search.items import Hit, Item, Kind, Query, Record, as_query
from selhn.search.milvus.nearest import nearest_rows
from selhn.search.milvus.rows import Row, hit_of, key_of, record_of
from selhn.search.milvus.store import MilvusStore, Searching, is_server
from selhn.search.milvus.where import milvus_expression
from selhn.search.milvus.writing import put_items, wanted_items
from selhn.search.snapshot import Identity
from selhn.search.where import Where, read_filter

IDENTITY, VERSION = "identity", 1
SMALL = 50_000
"""Up to so many images `approximate("auto")` leaves search exact."""


class MilvusIndex:
    """Images and their texts in Milvus; `Index` says what its methods do.

    Several processes may write to a server at once: an item is called by a digest of its id, and what is there already
    with the same content is left alone. A file of Milvus Lite is for one process. The position of a hit is the time at
    which it was added, in microseconds.
    """

    def __init__(self, model: AbstractMatcher, store: MilvusStore, identity: Identity):
        self.model, self.store, self.identity = model, store, identity
        self.path = None
        self._searching: Searching = store.searching()
        self._device = torch.device("cpu")
        self._changing = RLock()
        self._changes, self._counted = 0, -1

    @classmethod
    def create(cls, model: AbstractMatcher, uri: str, *, about: Mapping[str, Any] | None = None) -> "MilvusIndex":
        """An empty index at a uri: a server, http://host:19530, or a file of Milvus Lite, pictures.db.

        `#name` behind it names the collections. The model is not kept: `load` is given it, unless `about` says
        {"model": "ready"}.
        """
        require_vectors(model)
        if not model.is_embedding:
            raise SelhnError(f"{model.name} does not score by products, and Milvus does: keep its index in a folder")
        store = MilvusStore(uri)
        if _told(store) is not None:
            raise SelhnError(f"{uri} is an index already: open it, or name another behind a #")
        identity = Identity(digest_of(model), model.name or type(model).__name__, width_of(model), about=about or {})
        store.create(identity.width)
        if store.width() != identity.width:
            raise SelhnError(_other_width(uri, store.width(), identity.width))
        content = {
            "version": VERSION,
            "selhn": __version__,
            "model": identity.model,
            "model_name": identity.model_name,
            "width": identity.width,
            "about": dict(identity.about),
        }
        store.put("about", [Row(IDENTITY, IDENTITY, IDENTITY, 0, content, torch.tensor([1.0, 0.0]))])
        return cls(model, store, identity)

    @classmethod
    def load(cls, uri: str, model: AbstractMatcher | None = None) -> "MilvusIndex":
        """Open an index at a uri; `model` where it does not name the ready one."""
        store = MilvusStore(uri)
        content = _told(store)
        if content is None:
            raise NotFound(f"there is no index at {uri}: make one with `selhn index FOLDER --uri {uri}`")
        if content.get("version") != VERSION:
            raise SelhnError(
                f"{uri} has version {content.get('version')} (selhn {content.get('selhn')}), this selhn reads {VERSION}"
                ": install another selhn, or name another index behind a #"
            )
        identity = Identity(content["model"], content["model_name"], content["width"], about=content["about"])
        model = named_model(identity, uri) if model is None else model
        if store.width() != width_of(model):
            raise SelhnError(_other_width(uri, store.width(), width_of(model)))
        require_same_model(model, identity.model, identity.model_name, uri, "name another index behind a #")
        return cls(model, store, identity)

    @property
    def place(self) -> str:
        """The uri."""
        return self.store.uri

    @property
    def about(self) -> Mapping[str, Any]:
        """What whoever made it wanted to remember."""
        return self.identity.about

    @property
    def generation(self) -> int:
        """Another number after a change of this process, or after `refresh` where others have added or removed some."""
        return self._changes + self._counted + 1

    @property
    def num_texts(self) -> int:
        """How many captions there are."""
        return self.store.count("texts")

    @property
    def found_by(self) -> str:
        """What proposes answers."""
        return self._searching

    def __len__(self) -> int:
        return self.store.count("images")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.store.get("images", [key_of(name)]))

    def ids(self) -> list[str]:
        """The ids of all items, in no order; of very many items this takes a while."""
        return [record.id for record in self.records()]

    def get(self, name: str) -> Record:
        """Captions and metadata of an item."""
        return record_of(self._row(name))

    def records(self, where: Where | None = None) -> Iterator[Record]:
        """What is known of all items for which a filter holds."""
        filter = None if where is None else read_filter(where)
        for row in self.store.rows("images", milvus_expression(filter)):
            if filter is None or filter(record_of(row)):
                yield record_of(row)

    def count(self, where: Where | None = None) -> int:
        """For how many items a filter holds; they are read for that, since Milvus knows filters only roughly."""
        return len(self) if where is None else sum(1 for _ in self.records(where))

    def search(
        self,
        query: str | Float[Tensor, "M F"] | Query | None = None,
        k: int = 5,
        find: Kind | None = None,
        *,
        text: str | None = None,
        image: Float[Tensor, "M F"] | None = None,
        like: str | None = None,
        weights: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> list[Hit]:
        """The k best answers to a text, to an image's regions, to an item (`like`), or to several of these at once."""
        return self.search_many([as_query(query, text, image, like, weights)], k, find, where=where)[0]

    def search_many(
        self,
        queries: Sequence[str | Float[Tensor, "_ _"] | Query],
        k: int = 5,
        find: Kind | None = None,
        *,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """The answers to several queries, which are encoded and searched together."""
        filter = None if where is None else read_filter(where)

        def of_items(names: list[str]) -> Float[Tensor, "n d"]:
            return torch.stack([self._vector(name) for name in names])

        def nearest_hits(some: Sequence[Query], kind: Kind, number: int) -> Iterable[Iterable[Hit]]:
            products = Asked(self.model, self.identity.width, some, self._device, of_items).products
            assert products is not None
            for rows in nearest_rows(self.store, self._searching, products.cpu(), kind, number, filter):
                yield (hit_of(row, kind) for row in rows)

        asked = [as_query(query) for query in queries]
        with in_eval_mode(self.model):
            return answers_by_kind(asked, k, find, lambda: self.num_texts > 0, nearest_hits)

    def add(self, items: Iterable[Item], existing: OnExisting = "refuse") -> int:
        """Encode and add items, some hundred at a time; gives how many were written.

        `existing` says what happens to an id that is there: it is refused, skipped, or replaced where its regions,
        captions or metadata are others; one that is the same is not encoded again.
        """
        if existing not in get_args(OnExisting):
            raise SelhnError(f'existing is {existing!r}: choose "refuse", "skip" or "replace"')
        walk, number = iter(items), 0
        with self._changing:
            while batch := list(islice(walk, ENCODED_AT_ONCE)):
                wanted = wanted_items(self.store, batch, existing)
                put_items(self.store, self.model, self.identity.width, wanted)
                self._changes += len(wanted)
                number += len(wanted)
        return number

    def update(self, items: Iterable[Item]) -> int:
        """Replace items by others of the same ids; one with neither regions nor a vector keeps its image."""

        def known(items: Iterable[Item]) -> Iterator[Item]:
            for item in items:
                own = self._vector(item.id)
                keeps = item.regions is None and item.vector is None
                yield replace(item, vector=own) if keeps else item

        return self.add(known(items), "replace")

    def delete(self, ids: Iterable[str]) -> int:
        """Remove items; gives how many. An id that is not there is an error, and nothing is removed."""
        names = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
        with self._changing:
            there = self.store.get("images", map(key_of, names))
            for name in names:
                if key_of(name) not in there:
                    raise NotFound(_missing(name))
            # The image first: texts without one are no answers.
            self.store.remove("images", there)
            self.store.remove_texts(there)
            self._changes += len(names)
        return len(names)

    def approximate(self, kind: ApproximateKind = "auto") -> None:
        """Have Milvus find the nearest by a graph (HNSW) from now on, or exactly again."""
        if kind not in ("auto", "exact", "hnsw"):
            raise SelhnError(f"in Milvus search is exact or hnsw, not {kind}: choose one of them, or auto")
        by_graph = kind == "hnsw" or (kind == "auto" and len(self) > SMALL)
        with self._changing:
            self._searching = "hnsw" if by_graph else "exact"
            self.store.search_by(self._searching)

    def refresh(self) -> None:
        """See whether others have added or removed items; a search always sees what is there."""
        self._counted = len(self)
        self._searching = self.store.searching()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off other threads; other processes may write too, each item as a whole."""
        with self._changing:
            yield

    def to(self, device: torch.device | str) -> "MilvusIndex":
        """The model on a device."""
        self._device = torch.device(device)
        self.model.to(self._device)
        return self

    def _row(self, name: str, vector: bool = False) -> Row:
        found = self.store.get("images", [key_of(name)], vectors=vector)
        if not found:
            raise NotFound(_missing(name))
        return found[key_of(name)]

    def _vector(self, name: str) -> Float[Tensor, " d"]:
        vector = self._row(name, vector=True).vector
        assert vector is not None
        return vector


def holds_index(uri: str) -> bool:
    """Whether there is an index at a uri; a file is not made by asking."""
    return (is_server(uri) or Path(uri.partition("#")[0]).expanduser().exists()) and _told(MilvusStore(uri)) is not None


def _told(store: MilvusStore) -> dict[str, Any] | None:
    """What an index says of itself; it is written last."""
    found = store.get("about", [IDENTITY]).get(IDENTITY) if store.exists() else None
    return None if found is None else found.record


def _missing(name: str) -> str:
    return f"there is no item {name[:80]!r} in the index: ids are case-sensitive; `index.ids()` has all"


def _other_width(uri: str, there: int, wanted: int) -> str:
    return f"the vectors at {uri} have {there} numbers, those of this model {wanted}: name another index behind a #"
