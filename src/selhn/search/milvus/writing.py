"""Items to rows: what is there with the same content is left alone, the rest is encoded and written."""

import time
from collections.abc import Iterator, Mapping, Sequence

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.search.changes import OnExisting
from selhn.search.encoding import encode_items
from selhn.search.items import Item, Record
from selhn.search.milvus.rows import Row, content_of, key_of
from selhn.search.milvus.store import MOST_RECORD, MilvusStore


def _clock() -> Iterator[int]:
    """Microseconds, never twice the same."""
    last = 0
    while True:
        last = max(last + 1, time.time_ns() // 1000)
        yield last


CLOCK = _clock()


def wanted_items(store: MilvusStore, batch: Sequence[Item], existing: OnExisting) -> dict[str, tuple[Item, Record]]:
    """The items of a batch that have to be encoded, by their keys."""
    chosen: dict[str, tuple[Item, Record]] = {}
    there = store.get("images", (key_of(str(item.id)) for item in batch))
    for item in batch:
        record = Record.of(item)
        size = len(record.to_line())
        if size > MOST_RECORD:
            raise SelhnError(
                f"{record.id[:60]!r} has {size:,} bytes of metadata and captions, Milvus takes {MOST_RECORD:,}: "
                "keep them elsewhere"
            )
        key = key_of(record.id)
        known = there.get(key)
        if (known is not None or key in chosen) and existing == "refuse":
            raise SelhnError(
                f"there is an item {record.id!r} already: update it, or add with existing='skip' or 'replace'"
            )
        same = known is not None and known.content == content_of(item, record)
        if existing == "skip" and (known is not None or key in chosen):
            continue
        if same:
            chosen.pop(key, None)
        else:
            chosen[key] = item, record
    return chosen


def put_items(
    store: MilvusStore, model: AbstractMatcher, width: int, wanted: Mapping[str, tuple[Item, Record]]
) -> None:
    """Encode and write: texts, then images, by which the texts begin to count, then away with the texts of before."""
    if not wanted:
        return
    items, records = zip(*wanted.values())
    images, texts = encode_items(model, items, records, width)
    image_rows, text_rows = [], []
    own_texts = texts.split([len(record.captions) for record in records])
    for key, item, record, image, own in zip(wanted, items, records, images, own_texts):
        content = content_of(item, record)
        known = {"id": record.id, "metadata": dict(record.metadata)}
        image_rows.append(Row(key, key, content, next(CLOCK), {**known, "captions": list(record.captions)}, image))
        for number, (caption, vector) in enumerate(zip(record.captions, own)):
            named = f"{key}{content[:16]}{number:06}"
            text_rows.append(Row(named, key, content, next(CLOCK), {**known, "caption": caption}, vector))
    store.put("texts", text_rows)
    store.put("images", image_rows)
    store.remove_texts(wanted, but=[row.content for row in image_rows])
