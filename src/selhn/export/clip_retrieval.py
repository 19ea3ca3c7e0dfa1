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
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from selhn.base.errors import MissingExtra, SelhnError, pip_install
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

    def rows(self, rows: Rows) -> Iterator["EmbeddedRow"]:
        """One row per image, with its first caption, or one per caption, with its image."""
        texts = iter(self.texts.float().numpy())
        for record, image in zip(self.records, self.images.float().numpy()):
            own = [EmbeddedRow(record, image, caption, next(texts)) for caption in record.captions]
            yield from own if rows == "pair" else own[:1] or [EmbeddedRow(record, image, "", None)]


class EmbeddedRow(NamedTuple):
    """An image, its vector, a caption and its vector; "" and None if the image has no caption."""

    record: Record
    image: Float[np.ndarray, " d"]
    caption: str
    text: Float[np.ndarray, " d"] | None


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


def write_clip_retrieval(parts: Iterable[Embedded], out: Path, rows: Rows = "image", rows_per_file: int = ROWS) -> int:
    """Write a new folder, which appears when all of it is written, and return its number of rows.

    Args:
        rows: "image" for one row per image, with its first caption; "pair" for one per caption, with its image.
    """
    pyarrow = _imported()
    total, with_texts, files = 0, True, 0
    all_rows = (row for part in parts for row in part.rows(rows))
    with new_folder(Path(out)) as partial:
        for files, block in enumerate(iter(lambda: list(islice(all_rows, rows_per_file)), []), 1):
            with_texts = _write_block(pyarrow, partial, files - 1, block) and with_texts
            total += len(block)
        if total == 0:
            raise SelhnError("there is nothing to export: the index is empty, or no image has a caption")
        if not with_texts:  # rows of texts would no longer belong to rows of images
            shutil.rmtree(partial / "text_emb", ignore_errors=True)
        _named_by_number_of_files(partial, files)
    return total


def _write_block(pyarrow: Any, folder: Path, number: int, block: list[EmbeddedRow]) -> bool:
    """Write the files of some rows, and return whether all have a text."""
    records, images, captions, texts = zip(*block)
    with_texts = all(text is not None for text in texts)
    vectors = {"img_emb": images, "text_emb": texts} if with_texts else {"img_emb": images}
    for kind, own in vectors.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        unit = normalize(torch.from_numpy(np.stack(own)), dim=1)
        np.save(folder / kind / f"{kind}_{number}.npy", unit.half().numpy())
    columns: dict[str, list[Any]] = {"image_path": [record.id for record in records]}
    if any(captions):
        columns["caption"] = list(captions)
    fields = dict.fromkeys(name for record in records for name in record.metadata)
    for name in (str(name) for name in fields if name not in ("image_path", "caption")):
        columns[name] = _column([record.metadata.get(name) for record in records])
    (folder / "metadata").mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "metadata" / f"metadata_{number}.parquet")
    return with_texts


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
        raise MissingExtra(f"metadata in Parquet need pyarrow: {pip_install('export')}") from None
    return pyarrow
