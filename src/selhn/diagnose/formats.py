"""Read rows from common logs: tables, JSON, TensorBoard files and printed lines.

The suffix tells the format of a file; if there is none, as in pasted text, the first lines do.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.diagnose.events import read_events
from selhn.diagnose.logs import Log, from_rows

MOST_BYTES = 1 << 30
MOST_TEXT = 1 << 28
LONGEST_DOCUMENT = 1 << 26
"""Longest JSON document that is read, in characters."""
SNIFFED = 1 << 16
"""Characters that are enough to recognise the format."""
MOST_COLUMNS = 10_000
LONGEST_LINE = 4096
"""Characters that are read of each printed line."""
NUMBER = r"[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)"
PAIR = re.compile(
    rf"""(?<![\w.])([a-z][\w@/.-]{{0,63}})(?:['"]?\s{{0,3}}[:=]\s{{0,3}}|\s{{1,3}})({NUMBER})(?![\w.])""",
    re.IGNORECASE,
)
"""`Loss 25.6`, `loss: 0.2`, `'loss': 0.2` and `loss=0.2`; an average in brackets after it is left out."""
PLACE = re.compile(
    r"\bepoch:?\s{0,3}\[\s{0,8}(\d{1,9})\]\s{0,3}\[\s{0,8}(\d{1,9})\s{0,3}/\s{0,8}(\d{1,9})\]", re.IGNORECASE
)
"""`Epoch: [0][5/700]`: epoch, batch, batches per epoch."""
RECALLS = re.compile(
    rf"\b(image to text|text to image):?\s{{1,3}}((?:(?:{NUMBER}),?\s{{1,3}}){{2}}(?:{NUMBER}))",
    re.IGNORECASE,
)
"""R@1, R@5 and R@10 of one direction."""
HELD_OUT = re.compile(r"\b(?:val|valid|validation|dev|test|testing|eval|evaluation)\b", re.IGNORECASE)

Row = Mapping[str, Any]


def read_foreign(path: str | Path, column: str | None = None) -> Log:
    """The log in a file, from any program, or on standard input (`-`); `column` names its training loss."""
    if str(path) == "-":
        pasted = sys.stdin.buffer.read(MOST_TEXT + 1)
        _check_size("standard input", len(pasted), MOST_TEXT)
        return _read_text(io.TextIOWrapper(io.BytesIO(pasted), "utf-8-sig"), "standard input", "", column)
    path = Path(path)
    if not path.is_file():
        raise NotFound(
            f"there is no file {path}: name the folder of a run, a CSV, JSON or TensorBoard file, "
            "a printed log, or - for stdin"
        )
    is_events = "tfevents" in path.name
    _check_size(str(path), path.stat().st_size, MOST_BYTES if is_events else MOST_TEXT)
    if not is_events:
        with path.open(encoding="utf-8-sig") as file:
            return _read_text(file, str(path), path.suffix.lower(), column)
    by_step: dict[int, dict[str, Any]] = {}
    for step, tag, value in read_events(path):
        by_step.setdefault(step, {"step": step})[tag] = value
    return from_rows([by_step[step] for step in sorted(by_step)], str(path), column)


def _check_size(source: str, size: int, most: int) -> None:
    if size > most:
        raise SelhnError(
            f"{source} is larger than {most:,} bytes: log fewer rows, such as one every ten steps"
        )


def _read_text(file: io.TextIOWrapper, source: str, suffix: str, column: str | None) -> Log:
    try:
        head = file.read(SNIFFED)
        file.seek(0)
        reader = FORMS.get(suffix) or _likely(head)
        return from_rows(reader(file, source), source, column)
    except UnicodeDecodeError:
        raise Damaged(f"{source} is not UTF-8 text: save it as UTF-8") from None


def _likely(head: str) -> "Reader":
    if re.match(r'\s*(?:\{\s*["}]|\[\s*[\[\]{])', head):
        return _json_rows
    has_loss = any("loss" in name.lower() for line in head.splitlines() for name in _printed(line))
    return _printed_rows if has_loss else _table_rows


def _table_rows(file: io.TextIOWrapper, source: str) -> Iterator[Row]:
    """A table. Its first line names the columns; without names it has a loss, or steps and a loss."""
    first = file.readline(SNIFFED)
    file.seek(0)
    delimiter = next((one for one in ";\t" if one in first), ",")
    try:
        table = csv.reader(file, delimiter=delimiter)
        top = next(table, [])
        if len(top) > MOST_COLUMNS:
            raise SelhnError(f"{source} has more than {MOST_COLUMNS:,} columns: keep those of loss and step")
        rows: Iterator[list[str]] = table
        names = [name.strip() for name in top]
        if top and all(_number(cell, delimiter) is not None for cell in top):
            counts = len(top) > 1 and top[0].strip().isdigit()
            names = ["step" if counts and at == 1 else f"column {at}" for at in range(1, len(top) + 1)]
            if len(top) == 1 + counts:
                names[-1] = "loss"
            rows = chain([top], table)
        for row in rows:
            cells = zip(names, row)
            yield {name: value for name, cell in cells if (value := _number(cell, delimiter)) is not None}
    except csv.Error as error:
        raise Damaged(f"{source} cannot be read as a table ({error}): write it as CSV") from None


def _number(cell: str, delimiter: str) -> float | None:
    """The number in a cell; if commas do not separate cells, a comma is a decimal point."""
    if delimiter != "," and cell.count(",") == 1 and "." not in cell:
        cell = cell.replace(",", ".")
    try:
        return float(cell)
    except ValueError:
        return None


def _json_rows(file: io.TextIOWrapper, source: str) -> Iterator[Row]:
    """JSON lines, the last of which may be cut off; or one document with a list of objects.

    `trainer_state.json` of Hugging Face has the list in `log_history`.
    """
    is_first = True
    for number, text in enumerate(file, 1):
        _check_size(source, len(text), LONGEST_DOCUMENT)
        if not text.strip():
            continue
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError too
            if not is_first and not text.endswith("\n"):
                return
            document = text + file.read(LONGEST_DOCUMENT) if is_first else ""
            _check_size(source, len(document), LONGEST_DOCUMENT)
            try:
                parsed = json.loads(document)
            except (ValueError, RecursionError):
                parsed = None
            if parsed is None:
                what = "is not JSON: give lines of objects, or a list of them, or a .csv"
                raise Damaged(f"{source}, line {number} {what}") from None
        is_first = False
        if isinstance(parsed, dict) and isinstance(parsed.get("log_history"), list):
            parsed = parsed["log_history"]
        yield from (
            row for row in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(row, dict)
        )


def _printed_rows(file: io.TextIOWrapper, source: str) -> Iterator[Row]:
    """A row for every line that prints numbers, as VSE++, SCAN and most training programs do."""
    recalls: dict[str, float] = {}
    while line := file.readline(LONGEST_LINE):
        row: dict[str, Any] = _printed(line)
        if found := RECALLS.search(line):
            values = re.findall(NUMBER, found[2], re.IGNORECASE)
            recalls[found[1].lower()] = sum(map(float, values))
            if len(recalls) == 2:
                row["rsum"] = sum(recalls.values())
                recalls.clear()
        if row:
            yield row


def _printed(line: str) -> dict[str, float]:
    """The numbers of a printed line by their names; `val_` before those of held-out data."""
    row: dict[str, float] = {}
    end = 0
    for found in PAIR.finditer(line[:LONGEST_LINE]):
        name = "loss" if found[1] == "Le" else found[1]  # as VSE++ and SCAN call it
        is_held_out = HELD_OUT.search(line, end, found.start())
        row.setdefault(f"val_{name}" if is_held_out else name, float(found[2]))
        end = found.end()
    if place := PLACE.search(line[:LONGEST_LINE]):
        epoch, batch, batches = (int(number) for number in place.groups())
        row |= {"epoch": epoch, "step": epoch * batches + batch}
    return row


Reader = Callable[[io.TextIOWrapper, str], Iterator[Row]]
FORMS: Mapping[str, Reader] = {
    ".csv": _table_rows, ".tsv": _table_rows, ".json": _json_rows, ".jsonl": _json_rows, ".ndjson": _json_rows
}  # fmt: skip
