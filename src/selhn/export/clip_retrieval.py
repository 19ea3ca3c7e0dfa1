"""Embeddings of an index or a split in the layout of clip-retrieval, which its tools and autofaiss read.

OUT/img_emb/img_emb_0.npy          (rows, d) float16, of unit length
OUT/text_emb/text_emb_0.npy        the same for captions, if every row has one
OUT/metadata/metadata_0.parquet    image_path, caption, and a column for every field of the metadata

Row i of one file belongs to row i of the others. Beyond `ROWS` there are more files, 00, 01 and so on.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from selhn.base.errors import MissingExtra, SelhnError
from selhn.base.files import new_folder
from selhn.data import Split
from selhn.eval import encode_split
from selhn.models import AbstractMatcher
from selhn.search import Index, Record
from selhn.search.encoding import width_of
from selhn.search.items import split_ids

ROWS = 1_000_000
"""Rows per file, as many as clip-retrieval writes."""
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
        records = [self.records[row] for row in image_rows.tolist()]
        return EmbeddedRows(records, self.images[image_rows], told, texts)


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


def joined(parts: Sequence[EmbeddedRows]) -> EmbeddedRows:
    """Rows after each other; without vectors of texts if some have none."""
    texts = [part.texts for part in parts if part.texts is not None]
    return EmbeddedRows(
        [record for part in parts for record in part.records],
        torch.cat([part.images for part in parts]),
        [caption for part in parts for caption in part.captions],
        torch.cat(texts) if len(texts) == len(parts) else None,
    )


def write_clip_retrieval(parts: Iterable[Embedded], out: Path, rows: Rows = "image", rows_per_file: int = ROWS) -> int:
    """Write a new folder, which appears when all of it is written, and return its number of rows.

    Args:
        rows: "image" for one row per image, with its first caption; "pair" for one per caption, with its image.
    """
    pyarrow = _imported()
    total, with_texts, files = 0, True, 0
    with new_folder(Path(out)) as partial:
        for files, block in enumerate(_blocks((part.rows(rows) for part in parts), rows_per_file), 1):
            _write_block(pyarrow, partial, files - 1, block)
            total += len(block.records)
            with_texts = with_texts and block.texts is not None
        if total == 0:
            raise SelhnError("there is nothing to export: the index is empty, or no image has a caption")
        if not with_texts:  # rows of texts would no longer belong to rows of images
            shutil.rmtree(partial / "text_emb", ignore_errors=True)
        _named_by_number_of_files(partial, files)
    return total


def _blocks(parts: Iterable[EmbeddedRows], size: int) -> Iterator[EmbeddedRows]:
    """Rows put together so that each block but the last has as many as a file takes."""
    waiting: list[EmbeddedRows] = []
    number = 0
    for part in parts:
        first = 0
        while first < len(part.records):
            last = min(len(part.records), first + size - number)
            texts = None if part.texts is None else part.texts[first:last]
            waiting.append(
                EmbeddedRows(part.records[first:last], part.images[first:last], part.captions[first:last], texts)
            )
            number, first = number + last - first, last
            if number == size:
                yield joined(waiting)
                waiting, number = [], 0
    if waiting:
        yield joined(waiting)


def _write_block(pyarrow: Any, folder: Path, number: int, block: EmbeddedRows) -> None:
    vectors = {"img_emb": block.images, **({} if block.texts is None else {"text_emb": block.texts})}
    for kind, own in vectors.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        np.save(folder / kind / f"{kind}_{number}.npy", normalize(own.float(), dim=1).half().numpy())
    columns: dict[str, list[Any]] = {"image_path": [record.id for record in block.records]}
    if any(block.captions):
        columns["caption"] = list(block.captions)
    fields = dict.fromkeys(name for record in block.records for name in record.metadata)
    for name in (str(name) for name in fields if name not in ("image_path", "caption")):
        columns[name] = _column([record.metadata.get(name) for record in block.records])
    (folder / "metadata").mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, folder / "metadata" / f"metadata_{number}.parquet")


def _column(values: list[Any]) -> list[Any]:
    """Values of one type unchanged; mixed ones, lists and mappings as JSON."""
    kinds = {type(value) for value in values if value is not None}
    plain = len(kinds) < 2 and kinds <= {str, bool, int, float}
    small = all(abs(value) < 2**63 for value in values if type(value) is int)
    if plain and small:
        return values
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def _named_by_number_of_files(folder: Path, files: int) -> None:
    """Numbers as long as clip-retrieval makes them: with two digits from ten files on, and so forth."""
    digits = len(str(files))
    for path in folder.glob("*/*_*.*"):
        kind, _, number = path.stem.rpartition("_")
        path.rename(path.with_name(f"{kind}_{number.zfill(digits)}{path.suffix}"))


def _imported() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("metadata in Parquet need pyarrow: pip install 'selhn[export]'") from None
    return pyarrow
