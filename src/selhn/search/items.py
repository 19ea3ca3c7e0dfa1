"""What goes into an index and what comes out of it."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.names import require_type
from selhn.data import Split
from selhn.data.splits import split_ids

Kind = Literal["image", "text"]
Order = Literal["newest", "oldest"]
T = TypeVar("T")
Array: TypeAlias = Tensor | np.ndarray
"""Of numbers: from torch or from numpy."""
PLURAL: Mapping[Kind, Literal["images", "texts"]] = {"image": "images", "text": "texts"}
LONGEST_ID = 4096
DEEPEST = 32
SPLIT_BLOCK = 256
MOMENT = re.compile(r"(.+\.(?:mp4|m4v|mov|mkv|webm|avi))#t=(\d+(?:\.\d+)?)", re.IGNORECASE | re.DOTALL)
"""The id of a moment of a video, which is an item of its own: `clip.mp4#t=12.5`. The item `clip.mp4` is the video."""
MATCH = 0.5
"""An answer with at least this fit is called a match."""


@dataclass(frozen=True, eq=False)
class Item:
    """One image to be indexed, by its regions or by a vector that the model gave it, with its texts."""

    id: str
    """Unique in an index."""
    regions: Float[Array, "M F"] | None = None
    vector: Float[Array, " d"] | None = None
    captions: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Any JSON values; filters (`where`) use them."""

    def content(self, record: "Record") -> str:
        """Digest of what the item is made from: its regions or its vector, and its record."""
        digest = hashlib.blake2b(record.to_line(), digest_size=20)
        for part in (self.regions, self.vector):
            if part is not None:
                numbers = as_numbers(part).tobytes()
                digest.update(str(tuple(part.shape)).encode() + numbers)
        return digest.hexdigest()


@dataclass(frozen=True)
class Hit:
    """One answer, an image or a caption."""

    score: float
    kind: Kind
    name: str
    """The image's id, or the text itself."""
    captions: tuple[str, ...] = ()
    """Known texts of an image."""
    id: str = ""
    """The id of the item; for a text, of its image."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fit: float | None = None
    """How well an image matches a text, from 0 to 1; 0.5 or more is a match. It depends on the text and the
    image only, not on other images. None if unknown: the query is not only a text, the answers are captions,
    or nothing is known about the scores of the model (see `fit.py`)."""

    @property
    def fits(self) -> bool:
        """Whether it is called a match."""
        return self.fit is not None and self.fit >= MATCH


@dataclass(frozen=True)
class Record:
    """What is stored of an item besides its vectors: one line of JSON."""

    id: str
    captions: tuple[str, ...]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, item: Item) -> "Record":
        """The record of an item, after checking that it can be stored."""
        require_type("an item", item, Item, 'give Item("dog.jpg", regions)')
        if not isinstance(item.id, str) or not item.id or len(item.id) > LONGEST_ID:
            raise SelhnError(f"{str(item.id)[:60]!r} is not an id: give 1 to {LONGEST_ID} characters")
        for part in (item.regions, item.vector):
            if not isinstance(part, Tensor | np.ndarray | None):
                raise SelhnError(
                    f"the regions and the vector of {item.id!r} must be tensors or arrays, got "
                    f"{type(part).__name__}: use torch.as_tensor or np.asarray"
                )
        captions = tuple(item.captions)
        are_texts = all(isinstance(text, str) and text.strip() for text in captions)
        if isinstance(item.captions, str) or not are_texts:
            raise SelhnError(f"the captions of {item.id!r} are {captions!r}: give texts, none of them empty")
        if not isinstance(item.metadata, Mapping):
            raise SelhnError(f"the metadata of {item.id!r} must be a mapping of names to values")
        if _is_deeper(item.metadata, DEEPEST):
            raise SelhnError(f"the metadata of {item.id!r} are nested more than {DEEPEST} deep: flatten them")
        return cls(item.id, captions, dict(item.metadata))

    def hit(self, score: float, caption: str | None = None) -> Hit:
        """The image as an answer, or one of its captions."""
        if caption is None:
            return Hit(score, "image", self.id, self.captions, self.id, self.metadata)
        return Hit(score, "text", caption, (), self.id, self.metadata)

    def to_line(self) -> bytes:
        content = {"id": self.id, "captions": self.captions, "metadata": self.metadata}
        try:
            return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        except (TypeError, ValueError, RecursionError) as wrong:
            raise SelhnError(f"{self.id!r} is not JSON ({wrong}): use texts and numbers") from None

    @classmethod
    def from_line(cls, line: bytes) -> "Record":
        """The inverse of `to_line`."""
        try:
            content = json.loads(line)
            name, captions, metadata = content["id"], tuple(content["captions"]), content["metadata"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Damaged("an item cannot be read") from None
        are_texts = all(isinstance(text, str) for text in (name, *captions))
        if not are_texts or not isinstance(metadata, dict):
            raise Damaged("an item is not what was written")
        return cls(name, captions, metadata)


def as_numbers(array: Array) -> Float[np.ndarray, "..."]:
    """A tensor or an array as float32 in the memory of the host."""
    if isinstance(array, Tensor):
        return array.detach().float().cpu().numpy()
    return np.asarray(array, np.float32)


def whole(name: str) -> str:
    """The id of the video that a moment belongs to; any other id unchanged."""
    found = MOMENT.fullmatch(name) if "#t=" in name else None
    return name if found is None else found[1]


def seconds_of(name: str) -> float | None:
    """The seconds from the beginning of a video to a moment; None for any other id."""
    found = MOMENT.fullmatch(name) if "#t=" in name else None
    return None if found is None else float(found[2])


def moment_ids(record: "Record") -> list[str]:
    """The ids of the moments of a video, except the one that stands for the video."""
    times = record.metadata.get("moments")
    return [moment_id(record.id, at) for at in times] if isinstance(times, list) else []


def moment_id(video: str, at: float) -> str:
    """The id of the moment at some seconds, to a thousandth."""
    return f"{video}#t={round(at, 3):.12g}"


def date_of(found: Hit | Record) -> str:
    """When a picture was taken, or else when its file was changed; "" if neither is known."""
    return str(found.metadata.get("taken") or found.metadata.get("modified") or "")


def by_date(dated: Iterable[tuple[str, str, T]], order: Order) -> list[T]:
    """Things sorted by their dates, then ids; those without a date come last."""
    if order not in get_args(Order):
        raise SelhnError(f'order is {order!r}: choose "newest" or "oldest"')
    every = sorted(dated, key=itemgetter(0, 1))
    known = [one for date, _, one in every if date]
    return [*(known[::-1] if order == "newest" else known), *(one for date, _, one in every if not date)]


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested more than so many levels deep."""
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


def split_items(split: Split, skip: frozenset[str] = frozenset()) -> Iterator[Item]:
    """The images of a split in their order with their texts, except those with ids in `skip`.

    Image names are the ids; if a split has a name twice, the row number is added to it.
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


def digest_of_split(split: Split) -> str:
    """Identifies a split by its names and texts."""
    digest = hashlib.blake2b(digest_size=12)
    for lines in (split_ids(split), split.captions, map(str, split.image_of_text.tolist())):
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
