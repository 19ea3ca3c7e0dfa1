"""Files of captions of pictures: CSV, JSON lines, `token.txt` of Flickr8k, Karpathy's and COCO's JSON."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from selhn.base.errors import SelhnError
from selhn.base.untrusted import parse_json, read_lines, read_text
from selhn.data.formats.karpathy import SPLIT_NAMES, read_captioned_images

NAME_FIELDS = ("image", "file", "filename", "file_name", "image_name", "filepath", "path", "name")
TEXT_FIELDS = ("caption", "captions", "text", "sentence", "comment", "description", "title")
Row: TypeAlias = tuple[str, str, str | None]
"""The name of a picture, a text, and its split if the file has it."""
_NUMBERED = re.compile(r"^(?P<name>[^\t]+?)#\d+\s*\t(?P<text>.*)$")


@dataclass(frozen=True)
class PictureTexts:
    """The captions of one picture."""

    texts: tuple[str, ...]
    split: str | None = None
    """train, dev or test, if the file has it."""


def read_picture_texts(path: Path | str) -> dict[str, PictureTexts]:
    """The texts of pictures by file name, in any of the formats above; the content shows which one it is."""
    path = Path(path)
    if path.suffix.lower() == ".json":
        rows = _from_json(path)
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        lines = enumerate(read_lines(path), 1)
        rows = _from_objects((parse_json(line, f"{path}, line {n}") for n, line in lines if line), path)
    elif any(_NUMBERED.match(line) for line in read_lines(path)[:1]):
        rows = _from_token_lines(path)
    else:
        rows = _from_table(path)
    found: dict[str, PictureTexts] = {}
    for name, text, split in rows:
        kept = " ".join(text.split())
        known = found.get(name, PictureTexts((), split))
        found[name] = replace(known, texts=(*known.texts, kept)) if kept else known
    if not found:
        raise SelhnError(f"{path} has no captions: check which file it is")
    return found


def match_texts(
    names: Iterable[str], texts: Mapping[str, PictureTexts]
) -> tuple[dict[str, PictureTexts], list[str]]:
    """The texts of each picture, and names in the file that fit none.

    Names fit by path, else by file name, else without suffix. A short name of several pictures fits none.
    """
    shortened: dict[str, list[str]] = {}
    names = list(names)
    for name in names:
        for short in {name, Path(name).name, Path(name).stem}:
            shortened.setdefault(short, []).append(name)
    matched: dict[str, PictureTexts] = {}
    unmatched = []
    for given, found in texts.items():
        clean = given.replace("\\", "/").removeprefix("./")
        tries = [clean, Path(clean).name, Path(clean).stem]
        fitting = [shortened[short] for short in tries if short in shortened]
        if fitting and (clean in fitting[0] or len(fitting[0]) == 1):
            name = clean if clean in fitting[0] else fitting[0][0]
            known = matched.get(name, PictureTexts((), found.split))
            matched[name] = replace(known, texts=known.texts + found.texts)
        else:
            unmatched.append(given)
    return matched, unmatched


def _from_json(path: Path) -> Iterator[Row]:
    content = parse_json(read_text(path), str(path))
    if isinstance(content, list):
        yield from _from_objects(content, path)
    elif not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise SelhnError(f"{path}: needs a list of objects, or an object with 'images' (Karpathy, COCO)")
    elif isinstance(content.get("annotations"), list):
        yield from _from_coco(content, path)
    else:
        for image in read_captioned_images(path, max_captions=None):
            yield from ((image.filename or image.imgid, caption, image.split) for caption in image.captions)


def _from_coco(content: dict[str, Any], path: Path) -> Iterator[Row]:
    names = {
        image["id"]: str(image["file_name"])
        for image in content["images"]
        if isinstance(image, dict) and isinstance(image.get("id"), int | str) and "file_name" in image
    }
    for number, entry in enumerate(content["annotations"]):
        known = isinstance(entry, dict) and isinstance(entry.get("image_id"), int | str)
        if not known or entry["image_id"] not in names or not isinstance(entry.get("caption"), str):
            raise SelhnError(
                f"{path}, annotation {number}: needs 'caption' and the 'image_id' of an image in 'images': "
                "give the captions file of COCO, not that of its boxes"
            )
        yield names[entry["image_id"]], entry["caption"], None


def _from_objects(entries: Iterable[Any], path: Path) -> Iterator[Row]:
    for number, entry in enumerate(entries, 1):
        known = entry if isinstance(entry, dict) else {}
        name = next((known[field] for field in NAME_FIELDS if field in known), None)
        texts = next((known[field] for field in TEXT_FIELDS if field in known), None)
        texts = [texts] if isinstance(texts, str) else texts
        is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not isinstance(name, str) or texts is None or not is_list:
            raise SelhnError(
                f"{path}, entry {number}: needs 'image' (file name), and 'caption' (text) or 'captions' (list)"
            )
        split = _split_called(entry.get("split"), f"{path}, entry {number}")
        yield from ((name, text, split) for text in texts)


def _from_token_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        found = _NUMBERED.match(line)
        if found is None:
            raise SelhnError(f"{path}, line {number}: should be 'picture.jpg#0', a tab and a caption")
        yield found["name"], found["text"], None


def _from_table(path: Path) -> Iterator[Row]:
    text = read_text(path)
    delimiter = max("\t|;,", key=text.partition("\n")[0].count)
    table = _cells(text, delimiter, path)
    head = [cell.strip().lower() for cell in table[0][1]] if table else []
    named = next((head.index(field) for field in NAME_FIELDS if field in head), None)
    told = next((head.index(field) for field in TEXT_FIELDS if field in head), None)
    if named is None or told is None:
        raise SelhnError(
            f"{path}: the first line should name columns, such as image{delimiter}caption; found {head[:5]}"
        )
    split = head.index("split") if "split" in head else None
    for number, row in table[1:]:
        if row and len(row) <= max(named, told):
            raise SelhnError(f"{path}, line {number}: has {len(row)} columns, the first line {len(head)}")
        if row:
            given = row[split] if split is not None and split < len(row) else None
            yield row[named].strip(), row[told], _split_called(given, f"{path}, line {number}")


def _cells(text: str, delimiter: str, path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a table, each with its last line; quotes count if they are used as in CSV."""
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        # Reading by lines would cut captions at line breaks inside quotes, or at rarer marks.
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            skipinitialspace=True,
            strict=True,
            quoting=quoting,
        )
        try:
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            problem = f"line {reader.line_num}: {error}"
            continue
        # If quotes are part of the captions, a delimiter in one would cut it off.
        odd = next((number for number, row in rows if row and len(row) != len(rows[0][1])), None)
        if quoting == csv.QUOTE_MINIMAL or odd is None:
            return rows
    raise SelhnError(f"{path} is not a readable table ({problem}): close its quotes, save it as CSV")


def _split_called(word: Any, where: str) -> str | None:
    """The split that a word means; None for no word."""
    known = {**SPLIT_NAMES, "dev": "dev", "valid": "dev", "validation": "dev"}
    plain = "" if word is None else str(word).strip().lower()
    if plain and plain not in known:
        raise SelhnError(f"{where}: no split {str(word)[:40]!r}: write train, dev, test, or nothing")
    return known.get(plain)
