"""Albums: named lists of items, in one small file of an index in a folder."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import writing
from selhn.search.filters import OPERATORS, Comparison, Filter, Not, OneOf, Several
from selhn.search.items import Record, date_of, whole
from selhn.search.stores.checked_files import read_checked_json, write_checked_json
from selhn.search.stores.store import Store

ALBUMS = "albums"
FAVOURITES = "Favourites"
"""The album behind the heart button of the page."""
LONGEST_NAME, MOST_ALBUMS, MOST_MEMBERS = 100, 1000, 100_000
PATIENCE = 10.0
"""Seconds to wait for another process that changes albums."""
Members = dict[str, str]
"""Ids in the order they were added, each with its mark; see `mark_of`."""


class Albums:
    """Named lists of items. Their file has its own lock, so changing an album never waits for indexing.

    An item stays in its albums when its picture is renamed, moved to another folder or removed and indexed again: if
    no item has its id, the item with the same size and date is used.
    """

    def __init__(self, index: Path, store: Store):
        self.folder, self.store = index, store
        self.path = index / "albums.json"
        self._found: tuple[str, Mapping[str, list[str]]] = ("", {})

    @property
    def stamp(self) -> str:
        """Differs after every change of the file."""
        try:
            found = self.path.stat()
        except OSError:
            return ""
        return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"

    def all(self) -> Mapping[str, list[str]]:
        """The names of all albums, each with the ids of its items that are in the index."""
        return self._now()[1]

    def _now(self) -> tuple[str, Mapping[str, list[str]]]:
        """All albums, and a string that identifies this state of file and index."""
        known, now = self._found, f"{self.stamp} {self.store.generation}"
        if known[0] != now:
            albums = self._located(self._read())
            there = self.store.get({one for members in albums.values() for one in members})
            known = now, {name: [one for one in own if one in there] for name, own in albums.items()}
            self._found = known
        return known

    def change(
        self, name: str, add: Iterable[str] = (), remove: Iterable[str] = (), new_name: str = ""
    ) -> None:
        """Add items to an album, which is created if needed, remove some from it, or give it another name."""
        wanted, gone = list(map(whole, add)), set(map(whole, remove))
        found = self.store.get(wanted)
        if missing := [one for one in wanted if one not in found]:
            raise NotFound(f"there is no item {missing[0][:80]!r} in the index")
        with self._writing():
            albums = self._located(self._read())
            if not wanted:
                self._require(name, albums)
            before = albums.get(name, {})
            members = {**before, **{one: mark_of(found[one].record) for one in wanted}}
            albums[_plain(name)] = {one: mark for one, mark in members.items() if one not in gone}
            if new_name:
                if new_name in albums:
                    raise SelhnError(f"there is an album {new_name!r} already: choose another name")
                albums = {
                    _plain(new_name) if own == name else own: members for own, members in albums.items()
                }
            self._write(albums)

    def delete(self, name: str) -> None:
        """Delete an album; its items stay in the index."""
        with self._writing():
            albums = self._read()
            self._require(name, albums)
            self._write({own: members for own, members in albums.items() if own != name})

    def resolve(self, filter: Filter) -> Filter:
        """Replace `album` in a filter by the items of the albums that it names."""
        if isinstance(filter, Not):
            return Not(self.resolve(filter.inner))
        if isinstance(filter, Several):
            return replace(filter, filters=tuple(map(self.resolve, filter.filters)))
        if not isinstance(filter, Comparison) or filter.field != "album":
            return filter
        state, albums = self._now()
        if not albums:
            return filter
        if filter.operator == "!=":
            return Not(self.resolve(replace(filter, operator="=")))
        value = (
            tuple(map(str, filter.value)) if filter.operator == "in" else str(filter.value)
        )  # album = 2019
        named = [name for name in albums if OPERATORS[filter.operator](name, value)]
        if not named:
            raise _no_album(filter.value, albums)
        return OneOf(f"{named} {state}", frozenset(one for name in named for one in albums[name]))

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.folder, wait=PATIENCE, name="albums.lock")

    def _located(self, albums: Mapping[str, Members]) -> dict[str, Members]:
        """The albums with current ids, for items whose id has changed and that are found again."""
        marks = {one: mark for members in albums.values() for one, mark in members.items()}
        there = self.store.get(marks)
        lost = {mark for one, mark in marks.items() if mark and one not in there}
        records = self.store.scan() if lost else ()
        today = {mark: whole(record.id) for record in records if (mark := mark_of(record)) in lost}
        return {
            name: {one if one in there else today.get(mark, one): mark for one, mark in members.items()}
            for name, members in albums.items()
        }

    def _read(self) -> dict[str, Members]:
        if not self.path.exists():
            return {}
        try:
            albums: dict[str, Members] = read_checked_json(self.path).get(ALBUMS, {})
            kept = albums.values() if isinstance(albums, dict) else [None]
            if not all(
                isinstance(own, dict) and all(isinstance(mark, str) for mark in own.values()) for own in kept
            ):
                raise Damaged("it holds no albums")
        except Damaged as wrong:
            raise Damaged(f"{self.path} is damaged ({wrong}): restore a copy, or remove it") from None
        return albums

    def _write(self, albums: Mapping[str, Members]) -> None:
        if len(albums) > MOST_ALBUMS or sum(map(len, albums.values())) > MOST_MEMBERS:
            raise SelhnError(f"at most {MOST_ALBUMS:,} albums with {MOST_MEMBERS:,} items in all are kept")
        write_checked_json(self.path, {ALBUMS: albums})

    @staticmethod
    def _require(name: str, albums: Mapping[str, Members]) -> None:
        if name not in albums:
            raise _no_album(name, albums)


def mark_of(record: Record) -> str:
    """Size and date, which identify a picture under another name; "" if one of them is unknown."""
    size, date = record.metadata.get("bytes"), date_of(record)
    return f"{size} {date}" if isinstance(size, int) and date else ""


def _plain(name: str) -> str:
    if not 0 < len(name) <= LONGEST_NAME or name != name.strip() or not name.isprintable():
        raise SelhnError(
            f"{name[:40]!r} is not a valid album name: use 1 to {LONGEST_NAME} printable characters, "
            "with no space at either end"
        )
    return name


def _no_album(name: object, albums: Iterable[str]) -> NotFound:
    there = ", ".join(list(albums)[:10])
    return NotFound(
        f"there is no album {str(name)[:80]!r}: "
        + (f"choose from {there}" if there else "there are no albums yet")
    )
