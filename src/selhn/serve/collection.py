"""What is searched: an index, the extractor that made its features, and the folders its pictures lie in."""

import hashlib
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from selhn.base.errors import SelhnError
from selhn.pictures import Extractor
from selhn.pictures.extractor import Prepared
from selhn.pictures.files import FORMATS, decode_picture
from selhn.pictures.library import picture_facts
from selhn.search import AnyIndex, Hit, Item, Query, Record
from selhn.search.items import Kind
from selhn.serve.thumbnails import PictureFolders

UPLOADS = "uploads"
"""Below the first folder: where pictures go that are sent to be added."""
WRITTEN_BY_INDEXING = ("folder", "file", "modified", "bytes")
LOOK_EVERY = 2.0
"""Seconds between two looks at whether another process has changed the index."""
PICTURES_AT_ONCE = 16
COUNTED, MOST_VALUES = 20_000, 50


@dataclass(frozen=True, eq=False)
class Question:
    """What one request asks."""

    text: str | None = None
    like: str | None = None
    picture: Prepared | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    where: str | None = None
    find: Kind = "image"
    k: int = 24


class Collection:
    """An index with its pictures.

    Args:
        index: what is searched.
        extractor: how the features of its pictures were made; without it no picture can be asked with or added.
        folders: where ids are paths of pictures; without any there is nothing to look at.
    """

    def __init__(
        self, index: AnyIndex, extractor: Extractor | None = None, folders: Sequence[Path] = (), name: str = ""
    ):
        self.index, self.extractor, self.name = index, extractor, name
        self.pictures = PictureFolders(*folders) if folders else None
        self.stale = ""
        """Why the index on the disk is no longer the one that is searched, where that is so."""
        self._looked = 0.0
        self._fields: tuple[int, dict[str, list[tuple[Any, int]]]] = (-1, {})
        self._know_ids()

    def answer(
        self, questions: Sequence[Question], wanted: Callable[[int], bool] = lambda row: True
    ) -> list[list[Hit] | Exception]:
        """The answers to several questions; features of all pictures are extracted together, texts encoded together.

        A filter reads what is known of every item: one whose askers have all gone, of whom `wanted` tells, is left out.
        """
        self._refresh()
        queries = self._queries(questions)
        answers: list[list[Hit] | Exception] = [[] for _ in questions]
        groups: dict[tuple[str | None, Kind], list[int]] = {}
        for row, question in enumerate(questions):
            groups.setdefault((question.where, question.find), []).append(row)
        for (where, find), rows in groups.items():
            if not any(map(wanted, rows)):
                continue
            most = max(questions[row].k for row in rows)
            try:
                found = self.index.search_many([queries[row] for row in rows], most, find, where=where)
                for row, hits in zip(rows, found):
                    answers[row] = hits[: questions[row].k]
            except SelhnError as wrong:
                for row in rows:  # one of them is to blame: the others get their answers
                    answers[row] = wrong if len(rows) == 1 else self.answer([questions[row]])[0]
        return answers

    def prepare(self, content: bytes, most_pixels: int) -> Prepared:
        """A picture that someone sent, ready to be asked with."""
        if self.extractor is None:
            raise SelhnError("this index was not made from pictures by an extractor that is known: ask with a text")
        return self.extractor.prepare(decode_picture(content, "the picture", most_pixels).image)

    def picture(self, name: str) -> Path | None:
        """The file of an item."""
        return self.pictures.locate(name) if self.pictures is not None and name in self.index else None

    def have_pictures(self, names: Sequence[str]) -> list[bool]:
        """Which items of the index have a file."""
        return [self.pictures is not None and self.pictures.locate(name) is not None for name in names]

    def browse(self, first: int, number: int, where: str | None = None) -> tuple[list[Record], int]:
        """Some items in their order, and how many there are."""
        total = self.index.count(where)
        return list(islice(self.index.records(where), first, first + number)) if first < total else [], total

    def fields(self) -> dict[str, list[tuple[Any, int]]]:
        """Of every field that metadata have, the most frequent values and how many items have them."""
        generation = self.index.generation
        if self._fields[0] != generation:
            counts: dict[str, Counter[Any]] = {}
            for record in islice(self.index.records(), COUNTED):
                for name, value in record.metadata.items():
                    if (
                        isinstance(value, str | bool | int | float)
                        and len(str(value)) <= 80
                        and "://" not in str(value)
                    ):
                        counts.setdefault(name, Counter())[value] += 1
            shared = {name: own for name, own in counts.items() if 1 < len(own) <= own.total() / 2}
            found = {name: own.most_common(MOST_VALUES) for name, own in shared.items()}
            self._fields = (generation, found)
        return self._fields[1]

    def add(self, content: bytes, most_pixels: int, captions: Sequence[str], metadata: Mapping[str, Any]) -> str:
        """Keep a picture in the folder and in the index; gives its id, which is the same for the same picture."""
        if self.extractor is None or self.pictures is None:
            raise SelhnError("pictures cannot be added: it is not known how, or where, those of this index were kept")
        prepared = self.prepare(content, most_pixels)
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            suffix = {"JPEG": "jpg", "MPO": "jpg"}.get(str(opened.format), str(opened.format).lower())
        root = self.pictures.folders[0]
        path = root / UPLOADS / f"{_name_of(content)}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        if path.parent.is_symlink():
            raise SelhnError(f"{UPLOADS} in the folder of the pictures is a link that leads elsewhere: remove it")
        known = path.exists()
        try:
            if not known:
                path.write_bytes(content)
            regions = self.extractor.extract([prepared])[0]
            # As `selhn index` would call and describe it, so that it stays when that looks at the folder again.
            item = Item(str(path), regions, None, tuple(captions), {**metadata, **picture_facts(path, root)})
            self.index.add([item], existing="replace")
            self._know_ids()
        except BaseException:
            if not known:
                path.unlink(missing_ok=True)
            raise
        return item.id

    def change(self, name: str, captions: Sequence[str] | None, metadata: Mapping[str, Any] | None) -> None:
        """Other captions, or other metadata, for an item."""
        now = self.index.get(name)
        own = now.captions if captions is None else tuple(captions)
        # What indexing wrote says whether a file has changed, and is not for others to write.
        kept = {field: now.metadata[field] for field in WRITTEN_BY_INDEXING if field in now.metadata}
        self.index.update([Item(name, None, None, own, now.metadata if metadata is None else {**metadata, **kept})])
        self._know_ids()

    def delete(self, name: str) -> None:
        """Take an item out of the index; the file of a picture that was sent goes too, others stay."""
        path = self.picture(name)
        was_sent = path is not None and self._was_sent(path)
        self.index.delete([name])
        self._know_ids()
        if path is not None and was_sent:
            path.unlink(missing_ok=True)

    def _was_sent(self, path: Path) -> bool:
        """Whether `add` wrote a file: someone's own may lie in a folder of the same name, but is not called so."""
        folders = [] if self.pictures is None else [folder / UPLOADS for folder in self.pictures.folders]
        return path.parent in folders and path.is_file() and path.stem == _name_of(path.read_bytes())

    def _queries(self, questions: Sequence[Question]) -> list[Query]:
        prepared = [question.picture for question in questions if question.picture is not None]
        regions = []
        for first in range(0, len(prepared), PICTURES_AT_ONCE):
            assert self.extractor is not None
            regions += list(self.extractor.extract(prepared[first : first + PICTURES_AT_ONCE]))
        images = iter(regions)
        return [
            Query(one.text, None if one.picture is None else next(images), one.like, one.weights) for one in questions
        ]

    def _know_ids(self) -> bool:
        """Have an index in a folder read its ids here, in the thread of the model, and not when the first asks."""
        return "" in self.index

    def _refresh(self) -> None:
        if time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked = time.monotonic()
        try:
            self.index.refresh()
            self._know_ids()
            self.stale = ""
        except (SelhnError, OSError) as wrong:  # what is in memory is whole: it is searched on
            self.stale = str(wrong)


def _name_of(content: bytes) -> str:
    """What a picture that was sent is called."""
    return hashlib.sha256(content).hexdigest()[:24]
