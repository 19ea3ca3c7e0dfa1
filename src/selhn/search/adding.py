"""Items on their way into a store: chosen by their ids, then encoded a few hundred at a time."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.search.encoding import encode_items
from selhn.search.items import Item, Record
from selhn.search.stores import Encoded, Store

ENCODED_AT_ONCE = 512

OnExisting = Literal["refuse", "skip", "replace"]


def encoded_batches(
    model: AbstractMatcher, store: Store, items: Iterable[Item], existing: OnExisting
) -> Iterator[list[Encoded]]:
    """The items that a store is to write; what it has with the same content is left out."""
    walk, seen = iter(items), set[str]()
    while batch := list(islice(walk, ENCODED_AT_ONCE)):
        chosen: dict[str, tuple[Item, Record]] = {}
        pairs = [(item, _record(item, store.longest_record)) for item in batch]
        there = store.get([record.id for _, record in pairs])
        for item, record in pairs:
            if record.id in seen or record.id in there:
                if existing == "skip":
                    continue
                if existing == "refuse":
                    raise SelhnError(
                        f"there is an item {record.id!r} already: update it, or add with existing='skip' or 'replace'"
                    )
            seen.add(record.id)
            known = there[record.id].content if record.id in there else ""
            if known and known == item.content(record):
                chosen.pop(record.id, None)
            else:
                chosen[record.id] = item, record
        if chosen:
            some, records = zip(*chosen.values())
            images, texts = encode_items(model, some, records, store.identity.width)
            own_texts = texts.split([len(record.captions) for record in records])
            yield [Encoded(*one) for one in zip(some, records, images, own_texts)]


def _record(item: Item, longest: int) -> Record:
    """What is stored of an item beside its vectors, if it can be stored."""
    record = Record.of(item)
    size = len(record.to_line())
    if size > longest:
        raise SelhnError(
            f"{record.id[:60]!r} has {size:,} bytes of metadata and captions: "
            f"at most {longest:,} are stored, keep the rest elsewhere"
        )
    return record
