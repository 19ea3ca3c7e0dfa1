"""Remakes an index of a former ready model from its folders; the old one stays until that is done."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from selhn.base.errors import Damaged, Outdated
from selhn.base.files import refuse_links
from selhn.pictures.library import Library
from selhn.pictures.named_folders import name_for, named_for
from selhn.pictures.picture_files import is_there
from selhn.pictures.picture_folders import folders_of
from selhn.pictures.plans import Plan, kept_metadata
from selhn.pictures.removed import REMOVED_FILE
from selhn.search import Index, Item, Record
from selhn.search.stores import SegmentStore
from selhn.towers import AbstractTowers


class Former:
    """The index before it was remade, if there was one: `pictures.index.former` beside `pictures.index`."""

    def __init__(self, index: Path):
        self.path = index.with_name(f"{index.name}.former")
        self._gone = index.with_name(f".{self.path.name}.gone")
        try:
            refuse_links(index.parent, [self.path.name, self._gone.name], deep=False)
            self._store = SegmentStore.open(self.path) if Index.exists(self.path) else None
        except Damaged:  # its content cannot be carried over; it is left alone
            self._store = None
        records = () if self._store is None else self._store.scan()
        self.records: Mapping[str, Record] = {record.id: record for record in records}
        self.folders = folders_of(self.records.values())
        """As it says itself, see `named_folders`."""

    def carried(self, plan: Plan) -> Plan:
        """The plan with the captions and metadata that people wrote into the former index."""
        return replace(plan, add=[self._known(item) for item in plan.add]) if self.records else plan

    def _known(self, item: Item) -> Item:
        before = self.records.get(item.id)
        if before is None:
            return item
        return replace(item, captions=before.captions, metadata=kept_metadata(before.metadata, item.metadata))

    def remove(self, read: Collection[Path]) -> bool:
        """Remove it, unless a folder of it was not read or is missing (unmounted?); returns whether it existed."""
        if self._store is None or not all(
            any(map(one.is_relative_to, read)) and is_there(one) for one in self.folders
        ):
            return False
        shutil.rmtree(self._gone, ignore_errors=True)
        self.path.rename(self._gone)  # in one step: half an index is useless
        shutil.rmtree(self._gone, ignore_errors=True)
        return True


def open_or_start_again(path: Path, towers: AbstractTowers | None = None) -> tuple[Library, str]:
    """The library of an index; and what to say if a former ready model made it, and it was replaced.

    The new one is empty except for favourites, albums and what was removed; `Former` is the old one.
    """
    former, making = path.with_name(f"{path.name}.former"), path.with_name(f".{path.name}.making")
    refuse_links(path.parent, [former.name, making.name], deep=False)
    if not Index.exists(path) and Index.exists(former):  # killed between two renames
        (making if Index.exists(making) else former).rename(path)
    try:
        library = Library.open(path, towers)
        _ = library.towers
        return library, ""
    except Outdated:
        if towers is not None:
            raise
        shutil.rmtree(making, ignore_errors=True)
        new = Library.create(making)
        name_for(path, new.index.store.born, named_for(path, SegmentStore.open(path).born))
        for kept in filter(Path.exists, (path / "albums.json", path / REMOVED_FILE)):
            shutil.copy2(kept, making)
        if former.exists():  # the former one was complete, this one only a part of it
            shutil.rmtree(path)
        else:
            path.rename(former)
        making.rename(path)
    words = f"{path} was made by a former version of the model: it is made again, with the same favourites and albums. "
    return Library.open(path), words + f"The old one stays in {former} until the new one is complete."
