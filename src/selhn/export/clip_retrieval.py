"""Embeddings in the layout of clip-retrieval, which its tools and autofaiss read.

OUT/img_emb/img_emb_0.npy          (rows, d) float16, of unit length
OUT/text_emb/text_emb_0.npy        the same for captions, if every row has one
OUT/metadata/metadata_0.parquet    image_path, caption, and a column for every field of the metadata

Row i of one file belongs to row i of the others. Beyond `ROWS` there are more files, 00, 01 and so on.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.functional import normalize

from selhn.base.errors import MissingExtra, SelhnError
from selhn.base.files import new_folder
from selhn.export.embeddings import Embedded, EmbeddedRows, Rows, joined

ROWS = 1_000_000
"""Rows per file, as many as clip-retrieval writes."""


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
