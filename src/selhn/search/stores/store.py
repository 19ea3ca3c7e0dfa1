"""What an index needs from the place that stores its vectors: a few methods, and items encoded for it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged, Outdated, SelhnError
from selhn.base.names import NAMED_TOWERS
from selhn.base.types import StoredPrecision
from selhn.search.encoding import encode_items, require_towers
from selhn.search.filters import IS_MOMENT, Filter
from selhn.search.items import Hit, Item, Kind, Order, Record
from selhn.search.query import QueryVectors
from selhn.towers import AbstractTowers

ENCODED_AT_ONCE = 512
ApproximateKind = Literal["auto", "exact", "hnsw", "ivf", "ivf_int8"]
OnExisting = Literal["refuse", "skip", "replace"]
Answers: TypeAlias = Iterator[Iterable[Hit]]
"""Hits for each of several queries."""


_DIGEST = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, eq=False)
class Identity:
    """What an index is, whatever it contains."""

    model: str
    """Digest of the towers: of the name, settings and weights of their model."""
    model_name: str
    width: int
    precision: StoredPrecision = "float32"
    about: Mapping[str, Any] = field(default_factory=dict)
    """Notes of whoever made the index, such as how pictures become regions."""

    @classmethod
    def of(cls, towers: AbstractTowers, precision: StoredPrecision, about: Mapping[str, Any]) -> "Identity":
        require_towers(towers)
        if precision not in get_args(StoredPrecision):
            raise SelhnError(
                f"precision is {precision!r}: choose one of {', '.join(get_args(StoredPrecision))}"
            )
        if not _DIGEST.fullmatch(towers.digest):  # it becomes the name of a folder
            raise SelhnError(
                f"the digest of {towers.name} is {towers.digest[:60]!r}, which is not one: export the model again"
            )
        named = {} if towers.source is None else {"model": towers.source}
        return cls(towers.digest, towers.name, towers.width, precision, {**named, **about})

    def require(self, towers: AbstractTowers, path: Path | str) -> None:
        """Refuse towers that did not write the index at `path`."""
        own = Identity.of(towers, self.precision, {})
        name, own_name = self.about.get("model", self.model_name), own.about.get("model", own.model_name)
        if own.model != self.model and name == own_name and name in NAMED_TOWERS:
            raise Outdated(
                f"{path} was made with another version of the model {name!r}, "
                "and their vectors cannot be compared: `selhn photos` makes it again by itself; "
                "or rename that folder and make it again with `selhn index`; albums stay if you then copy "
                "albums.json from the old folder into the new one"
            )
        if own.model != self.model:
            raise SelhnError(
                f"{path} was written by another model ({name}, {self.model}), not by this one "
                f"({own_name}, {own.model}): leave the model out, or make another index for it at another "
                "path, such as --index NAME"
            )
        if own.width != self.width:
            raise Damaged(
                f"{path} has vectors of {self.width} numbers, and its model gives others: build it again"
            )


class Stored(NamedTuple):
    """An item of a store."""

    record: Record
    content: str = ""
    """Digest of what the item was made from; empty if the store keeps none."""
    vector: Float[Tensor, " d"] | None = None


class Encoded(NamedTuple):
    """An item with the vectors of its image and of its captions."""

    item: Item
    record: Record
    image: Float[Tensor, " d"]
    texts: Float[Tensor, "t d"]
    replaces: bool = False
    """Whether there already is an item with this id."""


Batches: TypeAlias = Iterable[Sequence[Encoded]]


class Store(ABC):
    """Keeps encoded items and finds the best of them."""

    identity: Identity
    path: Path | str | None
    """A folder, the URI of a server, or None for memory."""
    born: str = ""
    """Differs for every index; empty in memory, and for those that selhn 0.2.0 made on servers."""
    generation: int
    """Differs after every change that this process knows of."""
    found_by: str
    """What proposes answers; "exact" if every vector is compared."""
    longest_record: int
    """Bytes of captions and metadata that an item may have."""

    def __init__(self) -> None:
        self._changing, self.device = RLock(), torch.device("cpu")

    def encoded(self, towers: AbstractTowers, items: Iterable[Item], existing: OnExisting) -> Batches:
        """The items to write, a few hundred at a time; what is there with the same content is left out."""
        walk, seen = iter(items), set[str]()
        while batch := list(islice(walk, ENCODED_AT_ONCE)):
            pairs = [(item, Record.of(item)) for item in batch]
            there = self.get([record.id for _, record in pairs])
            chosen: dict[str, tuple[Item, Record]] = {}
            for item, record in pairs:
                size = len(record.to_line())
                if size > self.longest_record:
                    raise SelhnError(
                        f"{record.id[:60]!r} has {size:,} bytes of metadata and captions: "
                        f"at most {self.longest_record:,} are stored, keep the rest elsewhere"
                    )
                if record.id in seen or record.id in there:
                    if existing == "skip":
                        continue
                    if existing == "refuse":
                        raise SelhnError(
                            f"there is an item {record.id!r} already: update it, or add with "
                            "existing='skip' or 'replace'"
                        )
                seen.add(record.id)
                known = there[record.id].content if record.id in there else ""
                if known and known == item.content(record):
                    chosen.pop(record.id, None)
                else:
                    chosen[record.id] = item, record
            if chosen:
                some, records = zip(*chosen.values())
                images, texts = map(
                    torch.from_numpy, encode_items(towers, some, records, self.identity.width)
                )
                own_texts = texts.split([len(record.captions) for record in records])
                replaces = (record.id in there for record in records)
                yield [Encoded(*one) for one in zip(some, records, images, own_texts, replaces)]

    @abstractmethod
    def put(self, batches: Batches) -> int:
        """Write items, replacing those with the same ids; returns how many. Batches are taken one by one."""

    @abstractmethod
    def get(self, ids: Iterable[str], vectors: bool = False) -> dict[str, Stored]:
        """Items by their ids, in this order; unknown ids are left out."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Remove items, all of which exist."""

    @abstractmethod
    def scan(
        self, filter: Filter | None = None, order: Order | None = None, first: int = 0
    ) -> Iterator[Record]:
        """The records of all items that match a filter, after skipping `first`; see `Index.records`."""

    def ids(self) -> list[str]:
        """The ids of all items."""
        return [record.id for record in self.scan()]

    @property
    def has_moments(self) -> bool:
        """Whether there are moments of videos, see `items.MOMENT`: a list of files then needs a filter."""
        return next(self.scan(IS_MOMENT), None) is not None

    @abstractmethod
    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        """Number of images, or of captions, whose items match a filter."""

    @abstractmethod
    def nearest(self, queries: QueryVectors, kind: Kind, k: int, filter: Filter | None) -> Answers:
        """The k best answers to each query, best first; equal scores in the order of adding."""

    @abstractmethod
    def approximate(self, kind: ApproximateKind) -> None:
        """Compare only some candidates from now on, or all again."""

    @abstractmethod
    def refresh(self) -> None:
        """See what others have written."""

    def writing(self, wait: float = 0.0) -> AbstractContextManager[object]:
        """Keep other writers out during several changes: other threads and, for a folder, other processes.

        If another process is writing, wait up to `wait` seconds for it.
        """
        return self._changing

    def kept_towers(self) -> AbstractTowers | None:
        """The towers that are stored with the vectors, if there are some."""
        return None

    def to(self, device: torch.device) -> None:
        """Compare on a device; vectors in this process move there."""
        self.device = device
