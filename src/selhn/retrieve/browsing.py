"""A page of the items of an index, as people leaf through them."""

from itertools import islice

from selhn.retrieve.index import Index
from selhn.retrieve.interface import AnyIndex
from selhn.retrieve.items import Record
from selhn.retrieve.where import Where, read_filter


def browse(index: AnyIndex, first: int, number: int, where: Where | None = None) -> tuple[list[Record], int]:
    """Some of the items for which a filter holds, in their order, and how many there are.

    In Milvus the order is none that means anything; with a filter all that it leaves are read to be counted.
    """
    if isinstance(index, Index):
        parts, filter = index.snapshot.parts, None if where is None else read_filter(where)
        chosen = [part.alive if filter is None else part.alive & part.segment.chosen(filter) for part in parts]
        rows = ((part, row) for part, own in zip(parts, chosen) for row in own.nonzero()[:, 0].tolist())
        some = islice(rows, first, first + number)
        return [part.segment.lines[row] for part, row in some], sum(int(own.sum()) for own in chosen)
    found, total = [], 0 if where is not None else len(index)
    for place, record in enumerate(index.records(where)):
        if first <= place < first + number:
            found.append(record)
        elif where is None and place >= first + number:
            break
        total += where is not None
    return found, total
