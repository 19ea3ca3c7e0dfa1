"""Near-duplicates and bursts: pictures of an index that are almost the same, by their vectors and dates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.search.index import Index
from selhn.search.items import Record, date_of, whole

SAME, ALIKE, BURST_SECONDS = 0.94, 0.8, 10.0
"""Lowest cosine of copies, whenever they were taken, and of pictures taken within this many seconds.

Chosen on 630 photographs of Flickr8k with the ready model: no pair of different ones is above 0.92; all
copies that were darkened by a fifth or cropped by a twentieth are linked with their originals, directly or
through each other."""
DIRECTIONS, BLOCK, CANDIDATES = 64, 2048, 4
"""Principal directions by which vectors are compared first, vectors per block, and pairs per vector and block."""


@dataclass(frozen=True)
class Alike:
    """Pictures that are almost the same, the largest first."""

    kind: Literal["copies", "burst"]
    """The pictures of a burst were taken within seconds of each other."""
    ids: tuple[str, ...]


def near_duplicates(index: Index, told: Callable[[float], object] = lambda share: None) -> list[Alike]:
    """Groups of pictures that are almost the same, newest first; only for a folder.

    All pairs are compared block by block, by short vectors whose products are never below those of the whole ones.
    Pairs that pass are compared in full. That takes O(n) memory, and n * n / 2 products of 65 numbers.

    Args:
        told: called with the share of the work that is done; it may raise an exception to stop.
    """
    records, vectors = _read(index)
    groups = list(range(len(records)))
    for first, second in _pairs(records, vectors, told):
        one, other = _root(groups, first), _root(groups, second)
        groups[max(one, other)] = min(one, other)
    members: dict[int, list[_Picture]] = {}
    for row, record in enumerate(records):
        members.setdefault(_root(groups, row), []).append(record)
    found = [
        sorted(some, key=lambda one: (-one.pixels, -one.bytes)) for some in members.values() if len(some) > 1
    ]
    return [Alike(_kind(some), tuple(one.id for one in some)) for some in found]


@dataclass(frozen=True, slots=True)
class _Picture:
    id: str
    taken: float | None
    """Time in seconds; None if the camera did not record it."""
    pixels: int
    bytes: int

    @classmethod
    def of(cls, record: Record) -> "_Picture":
        facts = record.metadata
        try:
            taken = datetime.fromisoformat(str(facts.get("taken"))).timestamp()
        except (ValueError, OverflowError, OSError):
            taken = None
        numbers = [
            value if isinstance(value := facts.get(name), int) else 0 for name in ("width", "height", "bytes")
        ]
        return cls(record.id, taken, numbers[0] * numbers[1], numbers[2])


def _read(index: Index) -> tuple[list[_Picture], Float[Tensor, "n d"]]:
    """All pictures, newest first, and their vectors in half precision."""
    dates, pictures, vectors = [], [], [torch.empty(0, index.identity.width, dtype=torch.float16)]
    for records, images, _ in index.embeddings():
        rows = [
            row for row, record in enumerate(records) if whole(record.id) == record.id
        ]  # moments belong to a video
        dates += [date_of(records[row]) for row in rows]
        pictures += [_Picture.of(records[row]) for row in rows]
        vectors.append(torch.nn.functional.normalize(images[rows], dim=1).half())
    order = sorted(range(len(pictures)), key=lambda row: (dates[row], pictures[row].id), reverse=True)
    return [pictures[row] for row in order], torch.cat(vectors)[order]


def _pairs(
    pictures: list[_Picture], vectors: Float[Tensor, "n d"], told: Callable[[float], object]
) -> Iterator[tuple[int, int]]:
    yield from _bursts(pictures, vectors)
    short = _shortened(vectors)
    for first in range(0, len(short), BLOCK):
        rows = short[first : first + BLOCK]
        for other in range(0, first + 1, BLOCK):
            scores = rows @ short[other : other + BLOCK].T
            if other == first:
                scores.tril_(-1)  # each pair once
            passed = (scores.amax(1) >= SAME).nonzero()[:, 0]
            if len(passed):
                best = scores[passed].topk(min(CANDIDATES, scores.shape[1]))
                likely, place = (best.values >= SAME).nonzero(as_tuple=True)
                mine, theirs = passed[likely] + first, best.indices[likely, place] + other
                exact = _cosines(vectors, mine, theirs) >= SAME
                yield from zip(theirs[exact].tolist(), mine[exact].tolist())
        told(min(1.0, ((first + BLOCK) / len(short)) ** 2))


def _bursts(pictures: list[_Picture], vectors: Float[Tensor, "n d"]) -> Iterator[tuple[int, int]]:
    near = [
        row
        for row, (one, other) in enumerate(zip(pictures, pictures[1:]))
        if one.taken is not None and other.taken is not None and one.taken - other.taken <= BURST_SECONDS
    ]
    for rows in torch.tensor(near, dtype=torch.int64).split(BLOCK):
        alike = rows[_cosines(vectors, rows, rows + 1) >= ALIKE]
        yield from zip(alike.tolist(), (alike + 1).tolist())


def _cosines(
    vectors: Float[Tensor, "n d"], one: Int[Tensor, " p"], other: Int[Tensor, " p"]
) -> Float[Tensor, " p"]:
    return (vectors[one].float() * vectors[other].float()).sum(1)


def _shortened(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n s"]:
    """Vectors in the principal directions, and the length of the rest: their products are upper bounds."""
    sample = vectors[:: max(1, len(vectors) // 8192)].float()
    directions = torch.linalg.eigh(sample.T @ sample).eigenvectors[:, -DIRECTIONS:]
    short = torch.cat([block.float() @ directions for block in vectors.split(BLOCK)])
    return torch.cat([short, (1 - short.square().sum(1, keepdim=True)).clamp(min=0).sqrt()], 1)


def _root(groups: list[int], row: int) -> int:
    while groups[row] != row:
        groups[row] = row = groups[groups[row]]
    return row


def _kind(group: list[_Picture]) -> Literal["copies", "burst"]:
    times = sorted(one.taken for one in group if one.taken is not None)
    in_turn = len(times) == len(group) and times[0] < times[-1]
    return "burst" if in_turn and all(b - a <= BURST_SECONDS for a, b in pairwise(times)) else "copies"
