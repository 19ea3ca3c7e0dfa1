"""Pictures into an index, in one call: a folder of your own, or the example pictures."""

import json
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.files import private_folder, writing
from selhn.base.types import StoredPrecision
from selhn.data import FORMATS
from selhn.data.formats.captions import match_texts, read_picture_texts
from selhn.pictures.cache import FeatureCache, default_cache
from selhn.pictures.examples import ANNOTATIONS, PICTURES
from selhn.pictures.extraction import Extraction
from selhn.pictures.extractor import Extractor
from selhn.pictures.library import Library
from selhn.pictures.picture_files import VIDEOS, Found, find_pictures, missing_packages
from selhn.pictures.picture_folders import default_index
from selhn.pictures.plans import Indexed, make_plan
from selhn.pictures.tower_vectors import TowerVectors
from selhn.search import Index, Item, is_uri
from selhn.towers import AbstractTowers


def index_pictures(
    folder: Path | str | Found,
    path: Path | str | None = None,
    *,
    towers: AbstractTowers | None = None,
    extractor: str | None = None,
    captions: Path | str | None = None,
    precision: StoredPrecision = "float32",
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    quiet: bool = False,
    remove_missing: bool = False,
) -> Indexed:
    """Bring an index up to date with the pictures below a folder; it is created if it does not exist.

    Only new files, and those whose size or time of change differs, are read. An index takes several folders:
    the id of an item is its full path, and items below other folders are left alone.

    Args:
        path: of the index, a folder or the URI of a server; `default_index` if it is not given.
        towers, extractor, precision: of a new index, see `Library.create`; an extractor that may be downloaded is
            asked for every time.
        captions: a file that `read_picture_texts` reads.
        cache: folder of the features, see `Library.apply`.
        remove_missing: whether all items of a folder without any picture are removed, instead of an error.
    """
    found = folder if isinstance(folder, Found) else Library.scan(folder)
    path = path or default_index()
    path = path if is_uri(path) else Path(path).expanduser()
    device = choose_device(str(device))
    library = Library.open(path, towers, device, extractor) if Index.exists(path) else None
    if library is not None and extractor not in (None, library.index.about.get("extractor", extractor)):
        made_by = library.index.about["extractor"]
        raise SelhnError(f"{path} was made with the extractor {made_by}: use that, or another path")
    plan = make_plan(found, None if library is None else library.index, captions, remove_missing)
    if library is None:
        library = Library.create(path, towers, extractor, precision, device)
    return library.apply(plan, cache=cache, quiet=quiet)


def pictures_in(source: Path | str) -> Found | None:
    """The pictures of a folder; None if the source is a data set, or holds no pictures.

    If all its pictures need a package that is missing, that is an error.
    """
    path = Path(source).expanduser()
    if not path.is_dir() or any(known.looks_like(path) for known in FORMATS.values()):
        return None
    found = Library.scan(path).without_videos()
    missing = missing_packages().keys() - VIDEOS
    if not found.pictures and {file.suffix.lower() for file in found.others} & missing:
        make_plan(found, None)  # its error names the package
    return found if found.pictures else None


def open_examples(
    path: Path | None = None, towers: AbstractTowers | None = None, extractor: str | Extractor | None = None
) -> Library:
    """The example pictures, indexed at `path`, by default in the user's cache folder and by the ready model.

    An index of another version or of other towers, or one that is not complete, is made again: beside the
    old one, by one process while others wait.
    """
    path = path or default_cache().parent / "examples.index"
    new = Library.create(None, towers, extractor=extractor)
    index = _complete_examples(path, new)
    if index is None:
        making = path.with_name(f".{path.name}.making")
        with writing(private_folder(making), wait=-1):
            if _complete_examples(path, new) is None:
                _index_examples(making / "new", new)
                shutil.rmtree(path, ignore_errors=True)
                (making / "new").rename(path)
        index = Index.load(path, new.index.towers)
    return Library(index, None, [PICTURES], "Example pictures")


def _complete_examples(path: Path, new: Library) -> Index | None:
    with suppress(SelhnError):
        index = Index.load(path, new.index.towers)
        if index.about == new.index.about and len(index) >= len(example_facts()):
            return index
    return None


def _index_examples(path: Path, new: Library) -> None:
    shutil.rmtree(path, ignore_errors=True)  # left by a killed process
    towers, files = new.index.towers, find_pictures(PICTURES).pictures
    vectors = TowerVectors(towers)
    store = FeatureCache(default_cache(), vectors.cached_as, vectors.width, "float32")
    with closing(store):
        found = {
            Path(str(one.path)).relative_to(PICTURES).as_posix(): one.vector
            for one in Extraction(files, vectors, store)
        }
    texts, _ = match_texts(list(found), read_picture_texts(ANNOTATIONS))
    known = example_facts()
    index = Index.create(towers, path, keep_towers=False, about=new.index.about)
    index.add(Item(name, None, own, tuple(texts[name].texts), known[name]) for name, own in found.items())


def example_facts() -> dict[str, dict[str, Any]]:
    """Metadata of each example picture, to filter by and to show, with the licence, which must be named."""
    facts = {}
    for entry in json.loads(ANNOTATIONS.read_text(encoding="utf-8")):
        width, height = entry["orig_size"]
        shape = "landscape" if width > height else "portrait"
        facts[entry["file"]] = {
            "license": "CC BY-SA 2.0" if "ShareAlike" in entry["license"] else "CC BY 2.0",
            "license_url": entry["license_url"],
            "source": entry["flickr_url"],
            "shape": "square" if abs(width - height) <= 0.1 * height else shape,
        }
    return facts
