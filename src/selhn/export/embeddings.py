"""Vectors and what they belong to, of an index or a split: one row per image, or one per caption."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.data import Split
from selhn.eval import encode_split
from selhn.models import AbstractMatcher
from selhn.search import Index, Record
from selhn.search.encoding import width_of
from selhn.search.items import split_ids

Rows = Literal["image", "pair"]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Some images with the vectors of all their captions, one after the other."""

    records: Sequence[Record]
    images: Float[Tensor, "n d"]
    texts: Float[Tensor, "t d"]

    def rows(self, rows: Rows) -> "EmbeddedRows":
        """One row per image, with its first caption, or one per caption, with its image."""
        places, first = [], 0
        for image, record in enumerate(self.records):
            own = [(image, first + number) for number in range(len(record.captions))]
            places += own if rows == "pair" else [own[0] if own else (image, -1)]
            first += len(record.captions)
        image_rows, text_rows = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).unbind(1)
        captions = [text for record in self.records for text in record.captions]
        told = ["" if row < 0 else captions[row] for row in text_rows.tolist()]
        texts = self.texts[text_rows.clamp(min=0)] if bool((text_rows >= 0).all()) else None
        return EmbeddedRows([self.records[row] for row in image_rows.tolist()], self.images[image_rows], told, texts)


@dataclass(frozen=True, eq=False)
class EmbeddedRows:
    """Rows of an image, its vector, a caption and its vector; None if an image has no caption."""

    records: Sequence[Record]
    images: Float[Tensor, "n d"]
    captions: Sequence[str]
    texts: Float[Tensor, "n d"] | None


def embeddings_of_index(index: Index) -> Iterator[Embedded]:
    """What an index in a folder or in memory holds, segment by segment."""
    return (Embedded(*some) for some in index.embeddings())


def embeddings_of_split(model: AbstractMatcher, split: Split) -> Iterator[Embedded]:
    """The images and captions of a split, encoded by a model that has vectors."""
    width_of(model)  # refuses a model that has none
    images, texts = (part.float().cpu() for part in encode_split(model, split))
    order = split.image_of_text.argsort(stable=True)
    counts = torch.bincount(split.image_of_text, minlength=split.num_images).tolist()
    captions = iter([split.captions[text] for text in order.tolist()])
    records = [
        Record(name, tuple(next(captions) for _ in range(count)), {"split": split.name})
        for name, count in zip(split_ids(split), counts)
    ]
    yield Embedded(records, images, texts[order])


def joined(parts: Iterable[EmbeddedRows]) -> EmbeddedRows:
    """Rows after each other; without vectors of texts where some have none."""
    several = list(parts)
    texts = [part.texts for part in several if part.texts is not None]
    return EmbeddedRows(
        [record for part in several for record in part.records],
        torch.cat([part.images for part in several]),
        [caption for part in several for caption in part.captions],
        torch.cat(texts) if len(texts) == len(several) else None,
    )
