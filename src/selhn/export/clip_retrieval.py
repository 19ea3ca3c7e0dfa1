"""Embeddings of an index or a split, written as clip-retrieval writes its own."""

import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch

from selhn.base.errors import SelhnError
from selhn.base.folders import new_folder
from selhn.data import Split
from selhn.data.splits import split_ids
from selhn.eval import encode_split
from selhn.export.matcher_towers import width_of
from selhn.models import AbstractMatcher
from selhn.search import Index, Record
from selhn.search.embedded import TEXTS, Embedded, Rows, import_pyarrow, shard_files, write_rows

ROWS = 1_000_000
"""Rows per file, as many as clip-retrieval writes."""


def embeddings_of_index(index: Index) -> Iterator[Embedded]:
    """The content of an index in a folder or in memory, segment by segment."""
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


def write_clip_retrieval(
    parts: Iterable[Embedded], out: Path, rows: Rows = "image", rows_per_file: int = ROWS
) -> int:
    """Write a new folder, which appears once it is complete, and return its number of rows.

    Args:
        rows: "image" for one row per image, with its first caption; "pair" for one per caption, with its image.
    """
    import_pyarrow()
    total, files, with_texts = 0, 0, 0
    all_rows = (row for part in parts for row in part.rows(rows))
    with new_folder(Path(out)) as partial:
        for files, block in enumerate(iter(lambda: list(islice(all_rows, rows_per_file)), []), 1):
            with_texts += len(write_rows(block, partial, shard_files(files - 1, 1))) == 3
            total += len(block)
        if total == 0:
            raise SelhnError("there is nothing to export: the index is empty, or no image has a caption")
        if with_texts < files:  # otherwise rows of texts would not match rows of images
            shutil.rmtree(partial / TEXTS, ignore_errors=True)
        for number in range(files):
            for before, after in zip(shard_files(number, 1).values(), shard_files(number, files).values()):
                if (partial / before).exists():
                    (partial / before).rename(partial / after)
    return total
