"""Search: a collection encoded once, changed piece by piece, and the nearest of it to a query."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data import Split
from selhn.models import AbstractMatcher
from selhn.search.answering import Candidates, answer
from selhn.search.changes import (
    OnExisting,
    changes,
    committed,
    digest_of_split,
    moved,
    nothing,
    own_model,
    with_candidates,
    write_copy,
    written,
)
from selhn.search.encoding import require_same_model
from selhn.search.faiss_index import Approximate, ApproximateKind
from selhn.search.folder import IndexFolder, Opened, is_index
from selhn.search.items import Hit, Item, Kind, Query, Record, as_query, split_items
from selhn.search.segment import Draft
from selhn.search.snapshot import Identity, Snapshot
from selhn.search.vectors import Precision
from selhn.search.where import Where, read_filter


class Index:
    """Images and their texts, encoded once; search in all directions, exact unless `approximate` was called.

    With a path every change is on the disk when its call returns, and whatever kills the process, the index opens again
    with all that was written before. One process writes at a time; others search what they opened and call `refresh`.
    """

    def __init__(self, model: AbstractMatcher, opened: Opened, path: str | Path | None = None):
        self.model = model
        self.path = None if path is None else Path(path)
        self._opened = opened
        self._device = torch.device("cpu")
        self._changing = threading.RLock()
        self._held: IndexFolder | None = None

    @classmethod
    def create(
        cls,
        model: AbstractMatcher,
        path: str | Path | None = None,
        *,
        precision: Precision = "float32",
        about: Mapping[str, Any] | None = None,
        keep_model: bool = True,
    ) -> "Index":
        """An empty index, in memory or in a new folder.

        Args:
            precision: of the vectors: float32, float16, or int8 with one scale a vector.
            about: kept with the index as JSON, for whoever made it.
            keep_model: whether the model is saved in the folder; without it, `load` must be given the model, unless
                `about` says {"model": "ready"}, that of `selhn.pictures.ready`.
        """
        index = cls(model, nothing(model, precision, about or {}), path)
        if index.path is not None:
            folder = IndexFolder(index.path)
            with folder.writing():
                if is_index(index.path):
                    raise SelhnError(f"{index.path} is an index already: open it with Index.load, or give another name")
                folder.sweep(index._opened)
                index._opened = folder.commit(index._opened, [], model=model if keep_model else None)
        return index

    @classmethod
    def build(
        cls,
        model: AbstractMatcher,
        items: Split | Iterable[Item],
        path: str | Path | None = None,
        *,
        precision: Precision = "float32",
    ) -> "Index":
        """Encode a split, or items; with `path`, into a folder.

        An index that was there is replaced in one step when the new one is complete; one that cannot be opened,
        since it is damaged or of another version, is left alone, and that is an error. A build that was killed before
        it was complete goes on where it was, if it is of the same split and model.
        """
        index = cls(model, nothing(model, precision, {}), path)
        if index.path is None:
            index.add(split_items(items) if isinstance(items, Split) else items)
            return index
        folder, source = IndexFolder(index.path), digest_of_split(items) if isinstance(items, Split) else None
        with folder.writing():
            before = folder.open_or(index._opened)
            there = before.snapshot
            same = there.identity.model == index.snapshot.identity.model and there.identity.precision == precision
            if source is not None and there.unfinished == source and same:
                index._opened = before
            elif there.generation == 0 or there.unfinished is not None:
                begun = replace(index.snapshot, generation=there.generation, unfinished=source)
                index._opened = folder.commit(before, [], snapshot=begun, model=model)
            else:
                index._replace_all(folder, before, items)
                return index
            folder.sweep(index._opened)
            there_already = frozenset(index.snapshot.row_of_id)
            new = split_items(items, there_already) if isinstance(items, Split) else items
            index._append(new, "refuse", folder)
            finished = replace(index.snapshot, unfinished=None)
            index._opened = folder.commit(
                index._opened, finished.parts, snapshot=finished, approximate=index._opened.approximate
            )
        return index

    @classmethod
    def load(cls, path: str | Path, model: AbstractMatcher | None = None) -> "Index":
        """Open an index, its vectors mapped into memory; `model` where the folder neither holds nor names it."""
        folder = IndexFolder(path)
        opened = folder.open()
        identity = opened.snapshot.identity
        if model is None:
            model = own_model(folder, opened)
        require_same_model(model, identity.model, identity.model_name, path, "build an index of its own for it")
        return cls(model, with_candidates(folder.path, opened), path)

    @property
    def snapshot(self) -> Snapshot:
        """What the index holds now."""
        return self._opened.snapshot

    @property
    def candidates(self) -> Mapping[Kind, Candidates]:
        """What finds candidates for images and for texts, where `approximate` was called."""
        return self._opened.candidates

    @property
    def identity(self) -> Identity:
        """What the index is, whatever it holds."""
        return self.snapshot.identity

    @property
    def about(self) -> Mapping[str, Any]:
        """What whoever made the index wanted to remember."""
        return self.identity.about

    @property
    def place(self) -> str:
        """Where the index lies, for people."""
        return "memory" if self.path is None else str(self.path)

    @property
    def generation(self) -> int:
        """Another number after every change."""
        return self.snapshot.generation

    @property
    def num_texts(self) -> int:
        """How many captions there are."""
        return self.snapshot.num_texts

    @property
    def found_by(self) -> str:
        """What proposes answers, "exact" where all are looked at."""
        return ", ".join(sorted({one.kind for one in self.candidates.values()})) or "exact"

    def __len__(self) -> int:
        return len(self.snapshot)

    def __contains__(self, name: str) -> bool:
        return name in self.snapshot.row_of_id

    def ids(self) -> list[str]:
        """The ids of all items, in the order of their positions."""
        return list(self.snapshot.row_of_id)

    def get(self, name: str) -> Record:
        """Captions and metadata of an item."""
        number, row = self.snapshot.place(name)
        return self.snapshot.parts[number].segment.lines[row]

    def records(self, where: Where | None = None) -> Iterator[Record]:
        """What is known of all items for which a filter holds, in the order of their positions."""
        return self.snapshot.records(None if where is None else read_filter(where))

    def count(self, where: Where | None = None) -> int:
        """For how many items a filter holds."""
        return len(self) if where is None else self.snapshot.count(read_filter(where))

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
        """The k best answers to a text, to an image's regions, to an item (`like`), or to several of these at once.

        A text, an item and a mixture ask for images, an image alone for texts; `find` says otherwise. `weights` are
        those of `Query`, `where` is a filter on metadata (see `where.py`).
        """
        return self.search_many([as_query(query, text, image, like, weights)], k, find, where=where)[0]

    def search_many(
        self,
        queries: Sequence[str | Float[Tensor, "_ _"] | Query],
        k: int = 5,
        find: Kind | None = None,
        *,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """The answers to several queries, which are encoded and scored together."""
        asked = [as_query(query) for query in queries]
        filter = None if where is None else read_filter(where)
        now = self._opened
        return answer(self.model, now.snapshot, asked, k, find, filter, now.candidates, self._device)

    def add(self, items: Iterable[Item], existing: OnExisting = "refuse") -> int:
        """Encode and add items; gives how many.

        Items are taken a few hundred at a time and written some thousand at a time. What was written stays when a
        later item is refused. `existing` says what happens to an id that is there: it is refused, skipped (so that
        indexing that was stopped is gone on with by the same call), or replaced.
        """
        if existing not in ("refuse", "skip", "replace"):
            raise SelhnError(f'existing is {existing!r}: choose "refuse", "skip" or "replace"')
        with self._writing() as folder:
            return self._append(items, existing, folder)

    def update(self, items: Iterable[Item]) -> int:
        """Replace items by others of the same ids; one with neither regions nor a vector keeps its image."""

        def known(items: Iterable[Item]) -> Iterator[Item]:
            for item in items:
                number, row = self.snapshot.place(item.id)
                if item.regions is None and item.vector is None:
                    own = self.snapshot.parts[number].segment.images.take(slice(row, row + 1))[0].cpu()
                    item = replace(item, vector=own)
                yield item

        with self._writing() as folder:
            return self._append(known(items), "replace", folder)

    def delete(self, ids: Iterable[str]) -> int:
        """Remove items; gives how many. An id that is not there is an error, and nothing is removed."""
        with self._writing() as folder:
            places = [self.snapshot.place(name) for name in dict.fromkeys([ids] if isinstance(ids, str) else ids)]
            if places:
                self._opened = committed(folder, self._opened, self.snapshot.without(places), [])
            return len(places)

    def compact(self) -> None:
        """Write all that is there into one segment, and give the room of deleted items back."""
        with self._writing() as folder:
            drafts = [Draft(self.snapshot.parts)] if len(self) else []
            self._opened = moved(committed(folder, self._opened, [], drafts, compact=True), self._device)

    def approximate(self, kind: ApproximateKind = "auto") -> None:
        """Find candidates by FAISS (`pip install 'selhn[faiss]'`) from now on, and score them exactly.

        Args:
            kind: "hnsw", "ivf", "ivf_int8", "exact" for none, or "auto", which takes what the size asks for. Items
                that are added later are looked at one by one until it is called again.
        """
        with self._writing() as folder:
            found = Approximate.of(self.snapshot, kind, self.model)
            entries = []
            if folder is not None:
                entries = [one.write(folder.path / "approximate", self._opened.next_name) for one in found.values()]
            opened = written(folder, self._opened, self.snapshot.parts, [], entries)
            self._opened = replace(opened, candidates=found)

    def refresh(self) -> None:
        """See what other processes have written since the index was opened."""
        if self.path is None or IndexFolder(self.path).holds(self._opened):
            return
        opened = IndexFolder(self.path).open()
        if opened.snapshot.identity.model != self.snapshot.identity.model:
            raise SelhnError(f"{self.path} was built anew with another model: open it again with Index.load")
        self._opened = moved(with_candidates(self.path, opened), self._device)

    def check(self) -> None:
        """Read every byte of the folder, and refuse it where it is not what was written."""
        if self.path is not None:
            IndexFolder(self.path).check()

    def to(self, device: torch.device | str) -> "Index":
        """The model and the vectors on a device."""
        with self._changing:
            self._device = torch.device(device)
            self.model.to(self._device)
            self._opened = moved(self._opened, self._device)
        return self

    def save(self, path: str | Path) -> None:
        """Write what is there into a folder; an index that was there is replaced in one step."""
        write_copy(self.snapshot, self.model, path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock over several changes, so that no other process writes between them."""
        with self._writing() as folder:
            outer, self._held = self._held, folder
            try:
                yield
            finally:
                self._held = outer

    @contextmanager
    def _writing(self) -> Iterator[IndexFolder | None]:
        """Alone, and with what others have written since."""
        with self._changing:
            if self.path is None or self._held is not None:
                yield self._held
                return
            folder = IndexFolder(self.path)
            with folder.writing():
                self.refresh()
                folder.sweep(self._opened)
                yield folder

    def _append(self, items: Iterable[Item], existing: OnExisting, folder: IndexFolder | None) -> int:
        number = 0
        for draft, ids in changes(self.model, lambda: self.snapshot, iter(items), existing):
            rows = self.snapshot.row_of_id
            parts = self.snapshot.without([rows[name] for name in ids if name in rows])
            self._opened = moved(committed(folder, self._opened, parts, [draft]), self._device)
            number += len(ids)
        return number

    def _replace_all(self, folder: IndexFolder, before: Opened, items: Split | Iterable[Item]) -> None:
        """Write everything beside what is there, and name it in one step."""
        folder.sweep(before)
        every = split_items(items) if isinstance(items, Split) else items
        drafts = (change.draft for change in changes(self.model, lambda: self.snapshot, iter(every), "refuse"))
        self._opened = folder.commit(before, [], drafts, snapshot=self.snapshot, model=self.model)
