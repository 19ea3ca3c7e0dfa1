"""The example pictures as a collection: indexed on the first call, kept for the next."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.pictures import Extractor, default_cache, picture_split
from selhn.pictures.examples import ANNOTATIONS, PICTURES
from selhn.search import Index, Item, is_index
from selhn.search.items import split_items
from selhn.serve.collection import Collection

NAME = "Example pictures"


def open_examples(model: AbstractMatcher, extractor: Extractor, folder: Path | None = None) -> Collection:
    """The example pictures, by a model and the extractor it takes, in an index in `folder`."""
    folder = folder or default_cache().parent / "examples.index"
    about = {"extractor": extractor.identity, "pictures": len(facts())}
    index = _opened(folder, model)
    if index is None or dict(index.about) != about or len(index) < len(facts()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        index = Index.create(model, folder, keep_model=False, about=about)
        index.add(_items(extractor))
    return Collection(index, extractor, [PICTURES], NAME)


def facts() -> dict[str, dict[str, Any]]:
    """What is shown and filtered by, for every file; licences ask that they are named."""
    return {
        entry["file"]: {
            "license": "CC BY-SA 2.0" if "ShareAlike" in entry["license"] else "CC BY 2.0",
            "license_url": entry["license_url"],
            "source": entry["flickr_url"],
            "shape": _shape(*entry["orig_size"]),
        }
        for entry in json.loads(ANNOTATIONS.read_text(encoding="utf-8"))
    }


def _opened(folder: Path, model: AbstractMatcher) -> Index | None:
    try:
        return Index.load(folder, model) if is_index(folder) else None
    except SelhnError:  # of an older version, or another model: it is made again
        return None


def _items(extractor: Extractor) -> Iterator[Item]:
    known = facts()
    split, _ = picture_split(PICTURES, extractor, ANNOTATIONS)
    for item in split_items(split):
        yield replace(item, metadata=known[item.id])


def _shape(width: int, height: int) -> str:
    if abs(width - height) <= 0.1 * height:
        return "square"
    return "landscape" if width > height else "portrait"
