"""Vectors in segments, in memory or in a folder: what is written together never changes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data import Split
from selhn.search.filters import Filter
from selhn.search.items import Item, Kind, Order, Record, digest_of_split, split_items
from selhn.search.query import QueryVectors
from selhn.search.stores.best_rows import best_rows
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.segment import Segment, merged
from selhn.search.stores.segment_folder import IndexFolder, is_index
from selhn.search.stores.snapshot import Snapshot
from selhn.search.stores.store import Answers, ApproximateKind, Batches, Encoded, Identity, Store, Stored
from selhn.towers import AbstractTowers, open_towers

SEGMENT_ITEMS = 4096
"""Items that are written together: the most that a kill can lose."""
SMALL_SEGMENTS = 16
"""This many small segments are merged into one when the next is written."""
READ_AT_ONCE = 16_384


class SegmentStore(Store):
    """Segments, and which of their items are not deleted.

    With a folder every change is on the disk when its call returns. Readers keep the snapshot they have.
    """

    longest_record = 2**20

    def __init__(self, snapshot: Snapshot, folder: IndexFolder | None = None):
        super().__init__()
        self.snapshot, self.folder = snapshot, folder
        self.path = None if folder is None else folder.path
        self._holds_lock = False

    @classmethod
    def create(
        cls, path: Path | str | None, identity: Identity, towers: AbstractTowers, keep_towers: bool
    ) -> "SegmentStore":
        empty = Snapshot(identity)
        if path is None:
            return cls(empty)
        folder = IndexFolder(path)
        with folder.writing():
            if is_index(path):
                raise SelhnError(f"{path} is an index already: open it with Index.load, or give another name")
            folder.sweep(empty)
            return cls(folder.commit(empty, empty, towers=towers if keep_towers else None), folder)

    @classmethod
    def build(
        cls, path: Path | str, identity: Identity, towers: AbstractTowers, items: Split | Iterable[Item]
    ) -> "SegmentStore":
        """Write a complete index into a folder; see `Index.build`."""
        folder, empty = IndexFolder(path), Snapshot(identity)
        source = digest_of_split(items) if isinstance(items, Split) else None
        with folder.writing():
            before = folder.open() if is_index(path) else empty
            folder.sweep(before)
            replaces = before.generation > 0 and before.unfinished is None
            known = before.identity.model, before.identity.precision, before.unfinished
            if not replaces and (source is None or known != (identity.model, identity.precision, source)):
                before = folder.commit(before, replace(empty, unfinished=source), towers=towers)
            store = cls(empty) if replaces else cls(before, folder)
            new = split_items(items, frozenset(store.ids())) if isinstance(items, Split) else items
            batches = store.encoded(towers, new, "refuse")
            if replaces:  # write everything beside the old segments, then switch in one step
                drafts = ([Segment.of(some, identity.precision)] for _, some in _by_segment(batches))
                return cls(folder.commit(before, empty, drafts, towers), folder)
            store.put(batches)
            store.snapshot = folder.commit(store.snapshot, replace(store.snapshot, unfinished=None))
        return store

    @classmethod
    def open(cls, path: Path | str) -> "SegmentStore":
        folder = IndexFolder(path)
        return cls(folder.open_with_faiss(), folder)

    @staticmethod
    def exists(path: Path | str) -> bool:
        return is_index(path)

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        return self.snapshot.identity

    @property
    def generation(self) -> int:  # type: ignore[override]
        return self.snapshot.generation

    @property
    def born(self) -> str:  # type: ignore[override]
        return self.snapshot.born

    @property
    def found_by(self) -> str:  # type: ignore[override]
        used = {one.kind for one in self.snapshot.candidates.values() if one.faiss_index is not None}
        return ", ".join(sorted(used)) or "exact"

    @property
    def has_moments(self) -> bool:
        return self.snapshot.has_moments

    def kept_towers(self) -> AbstractTowers | None:
        if self.folder is None or not self.snapshot.model_kept:
            return None
        return open_towers(self.folder.path / "models" / self.identity.model)

    def get(self, ids: Iterable[str], vectors: bool = False) -> dict[str, Stored]:
        segments, names, found = self.snapshot.segments, list(ids), {}
        places = self.snapshot.find(names)
        for name, (number, row) in ((name, places[name]) for name in names if name in places):
            vector = segments[number].vectors["image"].take(slice(row, row + 1))[0] if vectors else None
            found[name] = Stored(segments[number].lines[row], vector=vector)
        return found

    def scan(
        self, filter: Filter | None = None, order: Order | None = None, first: int = 0
    ) -> Iterator[Record]:
        snapshot = self.snapshot
        places: Iterable[tuple[int, int]] = snapshot.places(order)
        if filter is not None:
            chosen = [segment.chosen(filter).tolist() for segment in snapshot.segments]
            places = (place for place in places if chosen[place[0]][place[1]])
        return (snapshot.segments[number].lines[row] for number, row in islice(places, first, None))

    def ids(self) -> list[str]:
        return [name for segment in self.snapshot.segments for name in segment.ids()]

    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        masked = [(segment.vectors[kind], segment.mask(kind, filter)) for segment in self.snapshot.segments]
        return sum(len(vectors) if mask is None else int(mask.sum()) for vectors, mask in masked)

    def nearest(self, queries: QueryVectors, kind: Kind, k: int, filter: Filter | None) -> Answers:
        now = self.snapshot
        keep = queries.products is None and torch.is_autocast_enabled(self.device.type)
        with torch.autocast(self.device.type, enabled=keep):
            best = best_rows(queries, now, kind, k, filter)
        for scores, rows in zip(best.scores.tolist(), best.rows.tolist()):
            yield (now.hit(kind, row, score) for score, row in zip(scores, rows) if row >= 0)

    def embeddings(self) -> Iterator[tuple[list[Record], Float[Tensor, "n d"], Float[Tensor, "t d"]]]:
        """All records with the vectors of their images and captions, some thousand at a time."""
        for segment in self.snapshot.segments:
            images, texts = segment.vectors["image"], segment.vectors["text"]
            for rows in segment.alive.nonzero()[:, 0].split(READ_AT_ONCE):
                own_texts = torch.isin(segment.item_of_text, rows).nonzero()[:, 0]
                records = [segment.lines[row] for row in rows.tolist()]
                yield records, images.take(rows).cpu(), texts.take(own_texts).cpu()

    def put(self, batches: Batches) -> int:
        """Write a segment for every few thousand items; what was written stays if a later batch fails."""
        number = 0
        for ids, some in _by_segment(batches):
            self._commit(self.snapshot.without(ids), [Segment.of(some, self.identity.precision)])
            number += len(ids)
        return number

    def delete(self, ids: Sequence[str]) -> None:
        if ids:
            self._commit(self.snapshot.without(ids), [])

    def compact(self) -> None:
        with self.writing():
            self._write(replace(self.snapshot, segments=(), candidates={}), self.snapshot.segments)

    def approximate(self, kind: ApproximateKind) -> None:
        """Build FAISS indices over all items; items added later are compared one by one."""
        with self.writing():
            found = FaissCandidates.of(self.snapshot.segments, kind)
            if self.folder is not None:
                path, name = self.folder.path / "approximate", f"{self.snapshot.next_name:06}"
                found = {side: one.write(path, name) for side, one in found.items()}
            self._write(replace(self.snapshot, candidates=found))

    def refresh(self) -> None:
        if self.folder is None or self.snapshot.is_in(self.folder.path):
            return
        opened = self.folder.open_with_faiss()
        if opened.identity.model != self.identity.model:
            raise SelhnError(f"{self.path} was built again with another model: open it again with Index.load")
        self.snapshot = self._moved(opened)

    def check(self) -> None:
        if self.folder is not None:
            there = self.folder.open()
            self.folder.check(there.segments, there.candidates.values())

    def to(self, device: torch.device) -> None:
        with self._changing:
            self.device = device
            self.snapshot = self._moved(self.snapshot)

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the lock, and see what others have written before."""
        with self._changing:
            if self.folder is None or self._holds_lock:
                yield
                return
            with self.folder.writing(wait):
                self._holds_lock = True
                try:
                    self.refresh()
                    self.folder.sweep(self.snapshot)
                    yield
                finally:
                    self._holds_lock = False

    def save(self, path: Path | str, towers: AbstractTowers) -> None:
        """Write everything as one segment into a folder; an index that was there is replaced in one step."""
        folder, empty = IndexFolder(path), Snapshot(self.identity)
        with folder.writing():
            before = folder.open() if is_index(path) else empty
            if before.generation == 0:  # a manifest first: the folder is then an index, even after a kill
                before = folder.commit(before, replace(empty, unfinished="save"), towers=towers)
            folder.sweep(before)
            drafts = [self.snapshot.segments] if len(self.snapshot) else []
            folder.commit(before, empty, drafts, towers)

    def _commit(self, segments: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Continue with these, small ones merged with new ones. Those that FAISS covers stay in place."""
        covered = max((one.parts for one in self.snapshot.candidates.values()), default=0)
        segments = [*segments[:covered], *filter(len, segments[covered:])]
        small = list(takewhile(lambda one: len(one) < SEGMENT_ITEMS, reversed(segments[covered:])))[::-1]
        if new and len(small) >= SMALL_SEGMENTS:
            segments, new = segments[: -len(small)], [*small, *new]
        self._write(replace(self.snapshot, segments=segments), new)

    def _write(self, after: Snapshot, draft: Sequence[Segment] = ()) -> None:
        """Continue with a snapshot and one new segment, on disk if there is a folder."""
        before, drafts = self.snapshot, [draft] if any(map(len, draft)) else []
        if self.folder is not None:  # what is copied is checked: damage must not get a checksum of its own
            self.folder.check(segment for segment in draft if segment.entry)
            after = self.folder.commit(before, after, drafts)
        else:
            segments = [*after.segments, *map(merged, drafts)]
            after = replace(after, segments=segments, generation=before.generation + 1)
        self.snapshot = self._moved(after)

    def _moved(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with its vectors on the device of the store."""
        return replace(snapshot, segments=[segment.to(self.device) for segment in snapshot.segments])


def _by_segment(batches: Batches) -> Iterator[tuple[list[str], list[Encoded]]]:
    """The ids and items of each new segment; of several items with the same id, the last counts."""
    pending: dict[str, Encoded] = {}
    for batch in batches:
        pending.update({one.record.id: one for one in batch})
        if len(pending) >= SEGMENT_ITEMS:
            yield list(pending), list(pending.values())
            pending.clear()
    if pending:
        yield list(pending), list(pending.values())
