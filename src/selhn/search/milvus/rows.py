"""What lies in Milvus: a row for every image and every text, called by digests."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from selhn.search.items import Hit, Item, Kind, Record


@dataclass(frozen=True)
class Row:
    """One vector with what is known of it."""

    key: str
    owner: str
    """The key of its image."""
    content: str
    """Digest of what the item was made from."""
    added: int
    """When, in microseconds; no two rows of a writer have the same."""
    record: dict[str, Any]
    vector: Float[Tensor, " d"] | None = None
    score: float = 0.0


def key_of(name: str) -> str:
    """What an item is called in Milvus: letters and digits, whatever its id is."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def content_of(item: Item, record: Record) -> str:
    """Digest of what an item is made from: its regions or its vector, captions and metadata."""
    digest = hashlib.blake2b(record.to_line(), digest_size=20)
    for part in (item.regions, item.vector):
        if part is not None:
            digest.update(str(tuple(part.shape)).encode() + part.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def ordered(rows: Iterable[Row]) -> list[Row]:
    """The highest scores first, equal ones in the order in which they were added."""
    return sorted(rows, key=lambda row: (-row.score, row.added))


def record_of(row: Row) -> Record:
    """What is known of the item of a row; the captions only where it is that of the image."""
    return Record(row.record["id"], tuple(row.record.get("captions", ())), row.record["metadata"])


def hit_of(row: Row, kind: Kind) -> Hit:
    """A row as an answer."""
    record = record_of(row)
    if kind == "image":
        return Hit(row.score, kind, row.added, record.id, record.captions, record.id, record.metadata)
    return Hit(row.score, kind, row.added, row.record["caption"], (), record.id, record.metadata)
