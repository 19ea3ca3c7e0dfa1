"""An index in Milvus, for more than fits on one machine: the same searches, and by default the same answers.

Vectors, captions and metadata are in Milvus (see `milvus_rows.py`), the model is not. Milvus gets the part of
a filter that it understands (`milvus_expression.py`), and what comes back is filtered again.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.search.filters import Filter
from selhn.search.items import PLURAL, Kind, Order, Record, by_date, date_of
from selhn.search.query import QueryVectors
from selhn.search.stores.milvus_expression import milvus_expression
from selhn.search.stores.milvus_rows import IDENTITY, MOST_HITS, MilvusRows, Row, is_server
from selhn.search.stores.server import Searching, ServerStore, key_of, split_uri
from selhn.search.stores.store import Answers, Batches, Stored

SORTED_AT_ONCE = 200


class MilvusStore(ServerStore):
    """Images and their texts in Milvus.

    Several processes may write to a server at once: the key of an item is a digest of its id. A Milvus Lite
    file is for one process.
    """

    product = "Milvus"
    longest_record = 65_000  # Milvus takes 65,536 bytes in a JSON field

    def __init__(self, uri: str):
        super().__init__(uri)
        self.rows = MilvusRows(uri)

    @classmethod
    def exists(cls, path: Path | str) -> bool:
        """Whether there is an index at a URI; this does not create a file."""
        address = split_uri(str(path))[0]
        return (is_server(address) or Path(address).expanduser().exists()) and super().exists(path)

    def about(self) -> dict[str, Any] | None:
        return self.rows.about()

    def make(self, width: int, about: Mapping[str, Any]) -> None:
        self.rows.create(width)
        self.rows.put("about", [Row(IDENTITY, IDENTITY, IDENTITY, 0, dict(about), torch.tensor([1.0, 0.0]))])

    def searching(self) -> Searching:
        return self.rows.searching()

    def search_by(self, searching: Searching) -> None:
        self.rows.search_by(searching)

    def state(self) -> tuple[Any, ...]:
        return (self.rows.count("images", others=True),)

    def put(self, batches: Batches) -> int:
        """Write each batch: texts, then images, which make the texts count, then remove earlier texts."""
        number, added = 0, count(time.time_ns() // 1000)
        for batch in batches:
            images, texts = [], []
            for item, record, image, own_texts, _ in batch:
                key, content = key_of(record.id), item.content(record)
                known = {"id": record.id, "metadata": dict(record.metadata)}
                whole = {**known, "captions": list(record.captions)}
                images.append(Row(key, key, content, next(added), whole, image))
                for place, (caption, vector) in enumerate(zip(record.captions, own_texts)):
                    named = f"{key}{content[:16]}{place:06}"
                    texts.append(Row(named, key, content, next(added), {**known, "caption": caption}, vector))
            self.rows.put("texts", texts)
            self.rows.put("images", images)
            before = [row.key for row, one in zip(images, batch) if one.replaces]
            self.rows.remove_texts(before, but=[row.content for row in images])
            self.generation += len(batch)
            number += len(batch)
        return number

    def get(self, ids: Iterable[str], vectors: bool = False) -> dict[str, Stored]:
        keys = list(map(key_of, ids))
        found = self.rows.get("images", keys, vectors)
        rows = (found[key] for key in keys if key in found)
        return {row.record["id"]: Stored(row.item, row.content, row.vector) for row in rows}

    def delete(self, ids: Sequence[str]) -> None:
        """Remove images, then their texts, which do not count without an image."""
        keys = list(map(key_of, ids))
        self.rows.remove("images", keys)
        self.rows.remove_texts(keys)
        self.generation += len(keys)

    def scan(
        self, filter: Filter | None = None, order: Order | None = None, first: int = 0
    ) -> Iterator[Record]:
        """Records in no order, or sorted here after reading all of them, which can take a while."""
        every = (row.item for row in self.rows.scan("images", self._expression(filter)))
        records = (record for record in every if filter is None or filter(record))
        if order is None:
            return islice(records, first, None)
        ids = by_date(((date_of(record), record.id, record.id) for record in records), order)[first:]
        parts = (self.get(ids[at : at + SORTED_AT_ONCE]) for at in range(0, len(ids), SORTED_AT_ONCE))
        return (stored.record for part in parts for stored in part.values())

    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        """Number of images or captions; a filter reads the records, because Milvus filters only roughly.

        Captions are counted by their images: a writer that was stopped may have left other texts.
        """
        if filter is None and kind == "image":
            return self.rows.count("images")
        if filter is None:
            having = (self.rows.count("images", f'record["captions"][{place}] > ""') for place in count())
            return sum(takewhile(bool, having))
        return sum(1 if kind == "image" else len(record.captions) for record in self.scan(filter))

    def nearest(self, queries: QueryVectors, kind: Kind, k: int, filter: Filter | None) -> Answers:
        """More rows are requested until k pass the filter, and no other row can tie with the last of them."""
        assert queries.products is not None
        vectors, found = queries.products.cpu(), [list[Row]() for _ in range(len(queries))]
        waiting, limit = list(range(len(queries))), min(k + 16, MOST_HITS)
        which, expression = PLURAL[kind], self._expression(filter)
        while waiting:
            answers = self.rows.nearest(which, vectors[waiting], limit, expression, self.found_by)
            left, images = [], self._images((row for rows in answers for row in rows), kind)
            for query, rows in zip(waiting, answers):
                kept = _passing(rows, images, filter)
                found[query] = kept[:k]
                if len(rows) < limit or (len(kept) >= k and rows[-1].score < kept[k - 1].score):
                    continue
                if limit < MOST_HITS:
                    left.append(query)
                elif len(kept) < k:
                    found[query] = self._best_of_all(vectors[query], kind, k, filter)
            waiting, limit = left, min(4 * limit, MOST_HITS)
        for best in found:
            yield (row.item.hit(row.score, row.record.get("caption")) for row in best)

    def _best_of_all(
        self, query: Float[Tensor, " d"], kind: Kind, k: int, filter: Filter | None
    ) -> list[Row]:
        """The nearest by reading every row, for a filter that none of the first rows pass."""
        best: list[Row] = []
        walk = self.rows.scan(PLURAL[kind], self._expression(filter), vectors=True)
        while some := list(islice(walk, 1000)):
            vectors = torch.stack([row.vector for row in some if row.vector is not None])
            scores = (vectors @ query).tolist()
            scored = [replace(row, score=score, vector=None) for row, score in zip(some, scores)]
            best = _passing([*best, *scored], self._images([*best, *scored], kind), filter)[:k]
        return best

    def _images(self, rows: Iterable[Row], kind: Kind) -> dict[str, Row] | None:
        """The images that texts belong to, all at once."""
        return None if kind == "image" else self.rows.get("images", (row.owner for row in rows))

    def _expression(self, filter: Filter | None) -> str:
        return "" if filter is None else milvus_expression(filter, self.rows.finds_within)


def _passing(rows: Iterable[Row], images: Mapping[str, Row] | None, filter: Filter | None) -> list[Row]:
    """Rows that pass the filter, best first, equal ones in the order in which they were added.

    Texts pass only if their image exists in the same version.
    """
    kept = [row for row in rows if filter is None or filter(row.item)]
    if images is not None:
        kept = [row for row in kept if row.owner in images and images[row.owner].content == row.content]
    return sorted(kept, key=lambda row: (-row.score, row.added))
