"""A folder of pictures into an index, in one call."""

from pathlib import Path

import torch

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.types import StoredPrecision
from selhn.data import FORMATS
from selhn.models import AbstractMatcher
from selhn.pictures.library import Library
from selhn.pictures.picture_files import Found
from selhn.pictures.picture_folders import default_index
from selhn.pictures.plans import Indexed, make_plan
from selhn.pictures.ready import READY
from selhn.search import Index, is_milvus


def index_pictures(
    folder: Path | str | Found,
    path: Path | str | None = None,
    *,
    model: AbstractMatcher | None = None,
    extractor: str | None = None,
    captions: Path | str | None = None,
    precision: StoredPrecision = "float32",
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    quiet: bool = False,
) -> Indexed:
    """Bring an index up to date with the pictures below a folder; it is created if it does not exist.

    Only new files, and those whose size or time of change differs, are read. An index takes several folders:
    the id of an item is its full path, and items below other folders are left alone.

    Args:
        path: of the index, a folder or a Milvus URI; `default_index` if it is not given.
        model, extractor, precision: of a new index, see `Library.create`.
        captions: a file that `read_picture_texts` reads.
        cache: folder of the features, see `Library.apply`.
    """
    found = folder if isinstance(folder, Found) else Library.scan(folder)
    path = path or default_index()
    path = path if is_milvus(path) else Path(path).expanduser()
    device = choose_device(str(device))
    library = Library.open(path, model, device) if Index.exists(path) else None
    if library is not None and extractor not in (None, library.index.about.get("extractor", extractor)):
        made_by = library.index.about["extractor"]
        raise SelhnError(f"{path} was made with the extractor {made_by}: take that, or another path")
    plan = make_plan(found, None if library is None else library.index, captions)
    if library is None:
        library = Library.create(path, model, extractor or READY, precision, device)
    return library.apply(plan, cache=cache, quiet=quiet)


def pictures_in(source: Path | str) -> Found | None:
    """The pictures of a folder; None if the source is a data set, or holds no pictures."""
    path = Path(source).expanduser()
    if not path.is_dir() or any(known.looks_like(path) for known in FORMATS.values()):
        return None
    found = Library.scan(path)
    return found if found.pictures else None
