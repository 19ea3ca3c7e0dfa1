"""An index in Milvus, for more than one machine holds: the same searches, and by default the same answers.

Vectors, captions and metadata are in Milvus (see `milvus_rows.py`), the model is not. Milvus gets the part of
a filter that it understands (`milvus_expression.py`), and what comes back is filtered again.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.version import __version__
from selhn.models import AbstractMatcher
from selhn.search.items import Hit, Kind, Record
from selhn.search.query import QueryVectors
from selhn.search.stores.milvus_expression import milvus_expression
from selhn.search.stores.milvus_rows import MOST_HITS, MilvusRows, Row, Which, is_server
from selhn.search.stores.store import Answers, ApproximateKind, Encoded, Identity, Store, Stored
from selhn.search.where import Filter

IDENTITY, VERSION = "identity", 1
IDENTITY_FIELDS = ("model", "model_name", "width", "about")
SMALL = 50_000
"""Up to so many images `approximate("auto")` leaves search exact."""
COLLECTIONS: Mapping[Kind, Which] = {"image": "images", "text": "texts"}


def _clock() -> Iterator[int]:
    """Microseconds, never the same twice."""
    last = 0
    while True:
        last = max(last + 1, time.time_ns() // 1000)
        yield last


CLOCK = _clock()


class MilvusStore(Store):
    """Images and their texts in Milvus.

    Several processes may write to a server at once: the key of an item is a digest of its id. A Milvus Lite
    file is for one process.
    """

    longest_record = 65_000  # Milvus takes 65,536 bytes in a JSON field

    def __init__(self, rows: MilvusRows, identity: Identity):
        self.rows, self.identity = rows, identity
        self._searching = rows.searching()
        self._changing = RLock()
        self._changes, self._counted = 0, -1

    @classmethod
    def create(
        cls, path: Path | str | None, identity: Identity, model: AbstractMatcher, keep_model: bool
    ) -> "MilvusStore":
        uri = str(path)
        if not model.is_embedding:
            raise SelhnError(f"{model.name} does not score by products: keep its index in a folder")
        if identity.precision != "float32":
            raise SelhnError(f"vectors in Milvus are float32, not {identity.precision}: omit the precision")
        rows = MilvusRows(uri)
        if _manifest(rows) is not None:
            raise SelhnError(f"{uri} is an index already: open it, or choose another #NAME")
        rows.create(identity.width)
        _require_width(rows, identity.width)
        content = {"version": VERSION, "selhn": __version__}
        content.update({name: getattr(identity, name) for name in IDENTITY_FIELDS})
        rows.put("about", [Row(IDENTITY, IDENTITY, IDENTITY, 0, content, torch.tensor([1.0, 0.0]))])
        return cls(rows, identity)

    @classmethod
    def open(cls, path: Path | str) -> "MilvusStore":
        uri = str(path)
        rows = MilvusRows(uri)
        content = _manifest(rows)
        if content is None:
            raise NotFound(f"there is no index at {uri}: make one with `selhn index FOLDER --uri {uri}`")
        if content.get("version") != VERSION:
            raise Damaged(
                f"{uri} has version {content.get('version')} (selhn {content.get('selhn')}), this selhn "
                f"reads {VERSION}: install another selhn, or choose another #NAME"
            )
        identity = Identity(**{name: content[name] for name in IDENTITY_FIELDS})
        _require_width(rows, identity.width)
        return cls(rows, identity)

    @staticmethod
    def exists(path: Path | str) -> bool:
        """Whether there is an index at a URI; a file is not created by asking."""
        uri = str(path)
        there = is_server(uri) or Path(uri.partition("#")[0]).expanduser().exists()
        return there and _manifest(MilvusRows(uri)) is not None

    @property
    def path(self) -> str:
        return self.rows.uri

    @property
    def generation(self) -> int:
        """Differs after a change by this process, and after `refresh` if the number of items differs."""
        return self._changes + self._counted + 1

    @property
    def found_by(self) -> str:
        return self._searching

    def put(self, batches: Iterable[Sequence[Encoded]]) -> int:
        """Write each batch: texts, then images, which make the texts count, then remove earlier texts."""
        number = 0
        for batch in batches:
            images, texts = [], []
            for item, record, image, own_texts in batch:
                key, content = key_of(record.id), item.content(record)
                known = {"id": record.id, "metadata": dict(record.metadata)}
                whole = {**known, "captions": list(record.captions)}
                images.append(Row(key, key, content, next(CLOCK), whole, image))
                for place, (caption, vector) in enumerate(zip(record.captions, own_texts)):
                    named = f"{key}{content[:16]}{place:06}"
                    texts.append(Row(named, key, content, next(CLOCK), {**known, "caption": caption}, vector))
            self.rows.put("texts", texts)
            self.rows.put("images", images)
            self.rows.remove_texts([row.key for row in images], but=[row.content for row in images])
            self._changes += len(batch)
            number += len(batch)
        return number

    def get(self, ids: Iterable[str], vectors: bool = False) -> dict[str, Stored]:
        found = self.rows.get("images", map(key_of, ids), vectors).values()
        return {row.record["id"]: Stored(record_of(row), row.content, row.vector) for row in found}

    def delete(self, ids: Sequence[str]) -> None:
        """Remove images, then their texts, which do not count without an image."""
        keys = list(map(key_of, ids))
        self.rows.remove("images", keys)
        self.rows.remove_texts(keys)
        self._changes += len(keys)

    def scan(self, filter: Filter | None = None) -> Iterator[Record]:
        """Records in no order; of very many items this takes a while."""
        records = map(record_of, self.rows.scan("images", milvus_expression(filter)))
        return (record for record in records if filter is None or filter(record))

    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        """Number of images or captions; a filter reads the records, because Milvus filters only roughly."""
        if filter is None:
            return self.rows.count(COLLECTIONS[kind])
        return sum(1 if kind == "image" else len(record.captions) for record in self.scan(filter))

    def nearest(self, queries: QueryVectors, kind: Kind, k: int, filter: Filter | None) -> Answers:
        """More rows are requested until k pass the filter, and no other can be equal to the last of them."""
        assert queries.products is not None
        vectors, found = queries.products.cpu(), [list[Row]() for _ in range(len(queries))]
        waiting, limit = list(range(len(queries))), min(k + 16, MOST_HITS)
        which, expression = COLLECTIONS[kind], milvus_expression(filter)
        while waiting:
            answers = self.rows.nearest(which, vectors[waiting], limit, expression, self._searching)
            left = []
            for query, rows in zip(waiting, answers):
                kept = self._passing(rows, kind, filter)
                found[query] = kept[:k]
                if len(rows) < limit or (len(kept) >= k and rows[-1].score < kept[k - 1].score):
                    continue
                if limit < MOST_HITS:
                    left.append(query)
                elif len(kept) < k:
                    found[query] = self._best_of_all(vectors[query], kind, k, filter)
            waiting, limit = left, min(4 * limit, MOST_HITS)
        for best in found:
            yield (hit_of(row, kind) for row in best)

    def approximate(self, kind: ApproximateKind) -> None:
        if kind not in ("auto", "exact", "hnsw"):
            raise SelhnError(f"in Milvus search is exact or hnsw, not {kind}: choose one of them, or auto")
        with self._changing:
            by_graph = kind == "hnsw" or (kind == "auto" and self.count() > SMALL)
            self._searching = "hnsw" if by_graph else "exact"
            self.rows.search_by(self._searching)

    def refresh(self) -> None:
        """See whether others have added or removed items; a search always sees what is there."""
        self._counted = self.count()
        self._searching = self.rows.searching()

    def writing(self) -> AbstractContextManager[object]:
        """Hold off other threads; other processes may write, each item as a whole."""
        return self._changing

    def _best_of_all(self, query: Float[Tensor, " d"], kind: Kind, k: int, filter: Filter | None) -> list[Row]:
        """The same by reading every row: for a filter that none of the nearest passes."""
        best: list[Row] = []
        walk = self.rows.scan(COLLECTIONS[kind], milvus_expression(filter), vectors=True)
        while some := list(islice(walk, 1000)):
            vectors = torch.stack([row.vector for row in some if row.vector is not None])
            scores = (vectors @ query).tolist()
            scored = [replace(row, score=score, vector=None) for row, score in zip(some, scores)]
            best = ordered([*best, *self._passing(scored, kind, filter)])[:k]
        return best

    def _passing(self, rows: Sequence[Row], kind: Kind, filter: Filter | None) -> list[Row]:
        """Rows that pass the filter; texts only if their image exists in the same version."""
        kept = [row for row in rows if filter is None or filter(record_of(row))]
        if kind == "text":
            images = self.rows.get("images", (row.owner for row in kept))
            kept = [row for row in kept if row.owner in images and images[row.owner].content == row.content]
        return ordered(kept)


def key_of(name: str) -> str:
    """The key of an item: letters and digits, whatever its id is."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def ordered(rows: Iterable[Row]) -> list[Row]:
    """The highest scores first, equal ones in the order in which they were added."""
    return sorted(rows, key=lambda row: (-row.score, row.added))


def record_of(row: Row) -> Record:
    """The record of a row's item; the captions only if it is the row of the image."""
    return Record(row.record["id"], tuple(row.record.get("captions", ())), row.record["metadata"])


def hit_of(row: Row, kind: Kind) -> Hit:
    """A row as an answer."""
    record = record_of(row)
    name = record.id if kind == "image" else row.record["caption"]
    return Hit(row.score, kind, name, record.captions, record.id, record.metadata)


def _manifest(rows: MilvusRows) -> dict[str, Any] | None:
    """What an index says of itself, which is written last."""
    found = rows.get("about", [IDENTITY]).get(IDENTITY) if rows.exists() else None
    return None if found is None else found.record


def _require_width(rows: MilvusRows, wanted: int) -> None:
    if rows.width() != wanted:
        raise SelhnError(
            f"the vectors at {rows.uri} have {rows.width()} numbers, this model has {wanted}: choose another #NAME"
        )
