"""Vectors of pictures and captions in files, in the layout of clip-retrieval, which its tools and autofaiss read.

img_emb/img_emb_0.npy          (rows, d) float16, of unit length
text_emb/text_emb_0.npy        the same for captions, if every row has one
metadata/metadata_0.parquet    image_path, caption, and a column for every field of the metadata

Row i of one file belongs to row i of the others. More rows are in more files, 00, 01 and so on.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from selhn.base.errors import Damaged, MissingExtra, NotFound, pip_install
from selhn.base.untrusted import open_array, require_file
from selhn.search.items import Item, Record

Rows = Literal["image", "pair"]
READ_AT_ONCE = 1024
IMAGES, TEXTS, METADATA = "img_emb", "text_emb", "metadata"
PATH, CAPTION = "image_path", "caption"


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


def shard_files(number: int, files: int) -> dict[str, str]:
    """Names of the files of a shard, with numbers as long as clip-retrieval makes them."""
    name = str(number).zfill(len(str(files)))
    vectors = {kind: f"{kind}/{kind}_{name}.npy" for kind in (IMAGES, TEXTS)}
    return {**vectors, METADATA: f"{METADATA}/{METADATA}_{name}.parquet"}


def write_rows(rows: Sequence[EmbeddedRow], folder: Path, names: dict[str, str]) -> list[str]:
    """Write the files of a shard; returns the names of those that were written."""
    pyarrow = import_pyarrow()
    records, images, captions, texts = zip(*rows)
    vectors = {IMAGES: images, TEXTS: texts} if all(text is not None for text in texts) else {IMAGES: images}
    for kind, own in vectors.items():
        path = folder / names[kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, normalize(torch.from_numpy(np.stack(own)), dim=1).half().numpy())
    columns: dict[str, list[Any]] = {PATH: [record.id for record in records]}
    if any(captions):
        columns[CAPTION] = list(captions)
    fields = dict.fromkeys(name for record in records for name in record.metadata)
    for name in (str(name) for name in fields if name not in (PATH, CAPTION)):
        columns[name] = _column([record.metadata.get(name) for record in records])
    path = folder / names[METADATA]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return [names[kind] for kind in (*vectors, METADATA)]


def _column(values: list[Any]) -> list[Any]:
    """Values of one type unchanged; mixed ones, lists and mappings as JSON."""
    kinds = {type(value) for value in values if value is not None}
    plain = len(kinds) < 2 and kinds <= {str, bool, int, float}
    small = all(abs(value) < 2**63 for value in values if type(value) is int)
    if plain and small:
        return values
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def read_rows(folder: Path, names: dict[str, str]) -> Iterator[Item]:
    """The items of a shard with their vectors, a block at a time; vectors of captions are not read."""
    vectors, read = open_array(folder / names[IMAGES], dims=(2,)), 0
    for table in read_table(folder / names[METADATA]):
        if PATH not in table[0]:
            raise NotFound(
                f"{folder / names[METADATA]} has no column {PATH}: add it, with the names of the pictures"
            )
        some = vectors[read : read + len(table)]
        if len(some) != len(table):
            break
        block = normalize(torch.from_numpy(some.astype(np.float32)), dim=1)
        for row, vector in zip(table, block):
            name, caption = str(row.pop(PATH)), row.pop(CAPTION, None)
            metadata = {key: value for key, value in row.items() if value is not None}
            yield Item(name, None, vector, (caption,) if caption else (), metadata)
        read += len(table)
    if read != len(vectors):
        raise Damaged(
            f"{folder / names[METADATA]} does not have the {len(vectors):,} rows of {names[IMAGES]}: "
            "copy both again"
        )


def read_table(
    path: Path, columns: Sequence[str] | None = None, first: int = 0, at_once: int = READ_AT_ONCE
) -> Iterator[list[dict[str, Any]]]:
    """The rows of a Parquet file from row `first` on, some at a time."""
    with parquet_file(path) as file:
        before = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if before + rows <= first:
                before += rows
                continue
            for batch in file.iter_batches(at_once, [group], columns):
                if before + len(batch) > first:
                    yield batch.slice(max(0, first - before)).to_pylist()
                before += len(batch)


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """An open Parquet file; any error in it is raised as `Damaged`."""
    pyarrow = import_pyarrow()
    require_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as wrong:
        raise Damaged(f"{path} is not readable Parquet ({str(wrong)[:120]}): copy it again") from None


def import_pyarrow() -> Any:
    """The library that reads and writes Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"metadata in Parquet need pyarrow: {pip_install('export')}") from None
    return pyarrow
