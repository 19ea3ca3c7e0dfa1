"""What goes into an index and what comes out of it."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data import Split

Kind = Literal["image", "text"]
LONGEST_ID = 4096
LONGEST_RECORD = 2**20
DEEPEST = 32
SPLIT_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Item:
    """One image to be indexed, by its regions or by a vector that the model gave it, with its texts."""

    id: str
    """What it is called; no two items of an index have the same."""
    regions: Float[Tensor, "M F"] | None = None
    vector: Float[Tensor, " d"] | None = None
    captions: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything JSON can say; `where` searches by it."""


@dataclass(frozen=True)
class Hit:
    """One answer: the item, its score, and what it is called."""

    score: float
    kind: Kind
    position: int
    """Row of the image or text in the index as it stands; changes when items are deleted or the index compacted."""
    name: str
    """The image's id, or the text itself."""
    captions: tuple[str, ...] = ()
    """Known texts of an image."""
    id: str = ""
    """The item; that of a text is its image."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Query:
    """What is looked for: a text, an image by its regions, an item of the index, or several of these at once."""

    text: str | None = None
    image: Float[Tensor, "M F"] | None = None
    like: str | None = None
    """The id of an item whose image is meant."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How much each counts, {"text": 2, "like": -0.5}; 1 where nothing is said. They are divided by their sum."""


@dataclass(frozen=True)
class Record:
    """What is kept of an item beside its vectors: one line of JSON."""

    id: str
    captions: tuple[str, ...]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, item: Item) -> "Record":
        """That of an item, once it is known that it can be kept."""
        if not isinstance(item.id, str) or not item.id or len(item.id) > LONGEST_ID:
            raise SelhnError(f"an item has the id {str(item.id)[:60]!r}: give a text of 1 to {LONGEST_ID} characters")
        captions = tuple(item.captions)
        if isinstance(item.captions, str) or not all(isinstance(text, str) and text.strip() for text in captions):
            raise SelhnError(f"the captions of {item.id!r} must be texts, none of them empty: got {item.captions!r}")
        if not isinstance(item.metadata, Mapping):
            raise SelhnError(f"the metadata of {item.id!r} must be a mapping of names to values")
        if _depth(item.metadata) > DEEPEST:
            raise SelhnError(f"the metadata of {item.id!r} are nested more than {DEEPEST} deep: keep them flatter")
        return cls(item.id, captions, dict(item.metadata))

    def to_line(self) -> bytes:
        """The line, with its end."""
        content = {"id": self.id, "captions": self.captions, "metadata": self.metadata}
        try:
            line = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        except (TypeError, ValueError, RecursionError) as wrong:
            raise SelhnError(f"{self.id!r} cannot be kept as JSON ({wrong}): give texts, numbers and lists") from None
        if len(line) > LONGEST_RECORD:
            raise SelhnError(f"{self.id[:60]!r} has {len(line):,} bytes of metadata and captions: keep them elsewhere")
        return line

    @classmethod
    def from_line(cls, line: bytes) -> "Record":
        """The inverse of `to_line`."""
        try:
            content = json.loads(line)
            name, captions, metadata = content["id"], tuple(content["captions"]), content["metadata"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SelhnError("an item cannot be read") from None
        if not isinstance(name, str) or not isinstance(metadata, dict) or not all(isinstance(c, str) for c in captions):
            raise SelhnError("an item is not what was written")
        return cls(name, captions, metadata)


def _depth(value: Any) -> int:
    """How deep lists and mappings are nested; not more than one more than is allowed."""
    level, depth = [value], 0
    while depth <= DEEPEST:
        inner = [
            one.values() if isinstance(one, Mapping) else one
            for one in level
            if isinstance(one, Mapping | list | tuple)
        ]
        if not inner:
            break
        level, depth = [value for values in inner for value in values], depth + 1
    return depth


def split_items(split: Split, skip: frozenset[str] = frozenset()) -> Iterator[Item]:
    """The images of a split in their order with their texts, but those whose ids are in `skip`.

    Image names are the ids; where a split has a name twice, the row is added to it.
    """
    ids = split_ids(split)
    captions: list[list[str]] = [[] for _ in ids]
    for text, image in enumerate(split.image_of_text.tolist()):
        captions[image].append(split.captions[text])
    wanted = torch.tensor([row for row, name in enumerate(ids) if name not in skip], dtype=torch.int64)
    for rows in wanted.split(SPLIT_BLOCK):
        regions, mask = split.features.gather(rows)
        for row, own, present in zip(rows.tolist(), regions, mask):
            yield Item(ids[row], own[present], None, tuple(captions[row]))


def split_ids(split: Split) -> list[str]:
    """What the images of a split are called in an index."""
    seen: set[str] = set()
    ids = []
    for row, name in enumerate(split.image_names):
        name = name if name and name not in seen else f"{name}#{row}"
        seen.add(name)
        ids.append(name)
    return ids


def as_query(
    query: str | Float[Tensor, "M F"] | Query | None,
    text: str | None = None,
    image: Float[Tensor, "M F"] | None = None,
    like: str | None = None,
    weights: Mapping[str, float] | None = None,
) -> Query:
    """What is asked, in any of the ways in which `search` takes it."""
    if query is None:
        return Query(text, image, like, weights or {})
    if any(part is not None for part in (text, image, like)):
        raise SelhnError("the query is given twice: by position, or by text=, image= and like=, not both")
    if isinstance(query, str):
        return Query(text=query)
    return query if isinstance(query, Query) else Query(image=query)


def checked_weights(query: Query, parts: list[str]) -> dict[str, float]:
    """The weights of the parts of a query, of which the sum of the sizes is 1."""
    unknown = [name for name in query.weights if name not in parts]
    if unknown:
        raise SelhnError(f"there is a weight for {unknown[0]!r} and no such part: this query has {', '.join(parts)}")
    weights = {part: float(query.weights.get(part, 1.0)) for part in parts}
    total = sum(map(abs, weights.values()))
    if not math.isfinite(total) or total == 0:
        raise SelhnError(f"the weights are {weights}: give finite numbers that are not all 0")
    return {part: weight / total for part, weight in weights.items()}
