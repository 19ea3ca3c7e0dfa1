"""The example pictures as a library: indexed on first use, kept for the next."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.pictures.cache import default_cache
from selhn.pictures.dataset import picture_split
from selhn.pictures.examples import ANNOTATIONS, PICTURES
from selhn.pictures.extractor import Extractor
from selhn.pictures.library import Library
from selhn.pictures.ready import READY
from selhn.search import Index
from selhn.search.items import split_items

NAME = "Example pictures"


def open_examples(
    path: Path | None = None, model: AbstractMatcher | None = None, extractor: str | Extractor = READY
) -> Library:
    """The example pictures, indexed at `path`, by default in the user's cache folder and by the ready model.

    An index of another version, model or extractor, or one that is not complete, is made again.
    """
    path = path or default_cache().parent / "examples.index"
    known = facts()
    new = Library.create(None, model, extractor=extractor)
    index = _opened(path, new.index.model)
    if index is None or index.about != new.index.about or len(index) < len(known):
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        index = Index.create(new.index.model, path, keep_model=False, about=new.index.about)
        assert new.extractor is not None
        split, _ = picture_split(PICTURES, new.extractor, ANNOTATIONS)
        index.add(replace(item, metadata=known[item.id]) for item in split_items(split))
    return Library(index, new.extractor, [PICTURES], NAME)


def facts() -> dict[str, dict[str, Any]]:
    """Metadata of each file, to show and to filter by; the licences require that they are named."""
    return {
        entry["file"]: {
            "license": "CC BY-SA 2.0" if "ShareAlike" in entry["license"] else "CC BY 2.0",
            "license_url": entry["license_url"],
            "source": entry["flickr_url"],
            "shape": _shape(*entry["orig_size"]),
        }
        for entry in json.loads(ANNOTATIONS.read_text(encoding="utf-8"))
    }


def _opened(path: Path, model: AbstractMatcher) -> Index | None:
    try:
        return Index.load(path, model) if Index.exists(path) else None
    except SelhnError:
        return None


def _shape(width: int, height: int) -> str:
    if abs(width - height) <= 0.1 * height:
        return "square"
    return "landscape" if width > height else "portrait"
