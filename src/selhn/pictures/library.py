"""Folders of pictures in an index: what is new is added, what changed is replaced, what is gone is removed."""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.progress import Progress
from selhn.data import FORMATS
from selhn.data.formats.captions import match_texts, read_picture_texts
from selhn.models import AbstractMatcher
from selhn.pictures import Extracted, Extractor, PictureReport, extract_pictures
from selhn.pictures.dataset import REPORT_FILE, describe_report, write_report
from selhn.pictures.extraction import is_text
from selhn.pictures.files import find_pictures, open_picture
from selhn.pictures.ready import load_extractor, load_ready_model
from selhn.pictures.ready.loader import READY
from selhn.search import AnyIndex, Item, Query, Record, create_index, has_index, is_index, is_milvus, load_index
from selhn.search.vectors import Precision

DEFAULT_INDEX = Path("selhn.index")
TEXT_WEIGHT = 2.0
"""Of a sentence beside a picture: two pictures are usually nearer to each other than a picture and a sentence."""
PICTURES_AT_ONCE = 512
"""Pictures that are extracted and then written to the index together: what is done can be searched meanwhile."""
GATHERED_AT_ONCE = 64
SHOWN = 10
"""Kinds of files that are named."""
EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, eq=False)
class Indexed:
    """An index of pictures, and what the last look at a folder did to it."""

    index: AnyIndex
    added: int
    changed: int
    removed: int
    unchanged: int
    report: PictureReport
    """Of the files that were read: those that had not been indexed as they are."""
    others: Mapping[str, int]
    """How many files are no pictures by their names, by the ends of these."""

    def __str__(self) -> str:
        head = f"{self.added:,} pictures added, {self.changed:,} changed, {self.removed:,} removed, "
        head += f"{self.unchanged:,} as before; {len(self.report.refused):,} left out"
        told = describe_report(replace(self.report, notes=()), report_folder(self.index) / REPORT_FILE).split("\n")[1:]
        kinds = ", ".join(f"{number:,} {suffix or 'without an ending'}" for suffix, number in self.others.items())
        return "\n".join([head, *told, *([f"  not pictures by their names: {kinds}"] if kinds else [])])


def holds_pictures(source: Path | str) -> bool:
    """Whether a path is a folder of pictures, and not a data set in any of the formats."""
    path = Path(source)
    if not path.is_dir() or any(known.looks_like(path) for known in FORMATS.values()):
        return False
    return bool(find_pictures(path).pictures)


def default_index() -> Path:
    """Where the index of a person's pictures lies if nothing else is said."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "selhn" / "pictures.index"


def index_pictures(
    folder: Path | str,
    path: Path | str | None = None,
    *,
    model: AbstractMatcher | None = None,
    extractor: str | None = None,
    captions: Path | str | None = None,
    precision: Precision = "float32",
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    batch_size: int = 16,
    workers: int = 2,
    quiet: bool = False,
) -> Indexed:
    """Bring an index up to date with the pictures below a folder; it is made where there is none.

    Only files that are new, or whose size or time of change is another, are read. An index takes several folders:
    items are called by their full paths, and those below other folders are left alone.

    Args:
        path: the index, a folder or a uri of Milvus; that of `default_index` if nothing is said.
        model: by default the ready model, which the index then names and does not copy.
        extractor: a name that `load_extractor` takes; by default that of the index, for a new one "ready".
        captions: a file that `read_picture_texts` reads.
        precision: of the vectors of a new index.
        cache: folder of the features; by default one in the user's cache folder.
    """
    root = Path(folder).expanduser().resolve()
    pictures, others, closed = find_pictures(root)
    if not pictures:
        raise SelhnError(f"{root} holds no pictures: give a folder with JPEG, PNG, WebP, GIF, BMP or TIFF files")
    told = None if captions is None else read_picture_texts(captions)
    device = choose_device(str(device))
    index, vision = _opened(path or default_index(), model, extractor, precision, device)
    index.to(device)
    kinds = Counter(path.suffix.lower() if is_text(path.suffix) else "" for path in others)
    with index.writing():
        known = {record.id: record for record in index.records({"id": {"like": below(root)}})}
        wanted, lost = _wanted(root, pictures, known, told)
        fresh = [Path(name) for name, item in wanted.items() if not _is_same(item, known.get(name))]
        progress = Progress(max(1, len(fresh)), quiet=quiet)
        how = {"cache": cache, "batch_size": batch_size, "workers": workers, "root": root, "progress": progress}
        try:
            used, report = _read_and_added(index, fresh, wanted, vision, how)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped: what was done is kept, and the same command goes on") from None
        progress.clear()
        unreadable = {str(path) for path in fresh} - used
        # Below a folder that cannot be looked into now, nothing is known to be gone.
        unseen = {name for name in known if any(Path(name).is_relative_to(folder) for folder, _ in closed)}
        gone = [name for name in known if name not in unseen and (name not in wanted or name in unreadable)]
        index.delete(gone)
        unmatched = [(name, f"has captions in {captions}, but no such picture is used") for name in lost]
        shut = [(str(folder), why) for folder, why in closed]
        report = replace(report, refused=(*report.refused, *shut, *unmatched))
        write_report(report, root, report_folder(index))
    new = sum(name not in known for name in used)
    before = len(wanted) - len(fresh)
    return Indexed(index, new, len(used) - new, len(gone), before, report, dict(kinds.most_common(SHOWN)))


def below(root: Path) -> str:
    """A pattern for the ids of pictures below a folder."""
    return glob.escape(str(root).rstrip(os.sep) + os.sep) + "*"


def report_folder(index: AnyIndex) -> Path:
    """Where it is written which pictures were left out: in the index, or for one in Milvus where yours would lie."""
    folder = default_index().parent if is_milvus(index.place) else Path(index.place)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def regions_of(index: AnyIndex, picture: Path | str) -> Float[Tensor, "M F"]:
    """The regions of a picture as the index takes them, to ask with."""
    name = index.about.get("extractor")
    if name is None:
        raise SelhnError(f"{index.place} was not made from pictures: ask with the id of an item, or with regions")
    return load_extractor(str(name))([open_picture(Path(picture).expanduser()).image])[0]


def picture_id(picture: Path | str) -> str:
    """What an index calls a picture."""
    path = Path(picture).expanduser()
    return str(path.parent.resolve() / path.name)


def found_index(place: Path | str | None) -> Path | str:
    """The index that is meant: the one named, else that of this folder, else that of the user's pictures."""
    if place is not None:
        return place
    return default_index() if is_index(default_index()) and not is_index(DEFAULT_INDEX) else DEFAULT_INDEX


def picture_query(index: AnyIndex, text: str | None, like: str | None, text_weight: float = TEXT_WEIGHT) -> Query:
    """A sentence, an item or the file of a picture, or both."""
    weights = {"text": text_weight} if text is not None and like is not None else {}
    if like is None or like in index:
        return Query(text, None, like, weights)
    if picture_id(like) in index:
        return Query(text, None, picture_id(like), weights)
    if not Path(like).expanduser().is_file():
        raise SelhnError(f"--like {like} is neither an item of {index.place} nor a file: name one of them")
    return Query(text, regions_of(index, like), None, weights)


def _opened(
    place: Path | str,
    model: AbstractMatcher | None,
    extractor: str | None,
    precision: Precision,
    device: torch.device | str,
) -> tuple[AnyIndex, Extractor]:
    """The index and what gives it regions, once it is known that they fit."""
    path = place if is_milvus(place) else Path(place).expanduser()
    if has_index(path):
        index = load_index(path, model)
        name = index.about.get("extractor")
        if name is None:
            raise SelhnError(f"{path} was not made from pictures: name another place for the index")
        if extractor not in (None, name):
            raise SelhnError(f"{path} was made with the extractor {name}: take that, or another place for the index")
        vision = load_extractor(str(name), device)
        if vision.identity != index.about.get("features"):
            raise SelhnError(
                f"{path} was made with other features ({index.about.get('features')}) than {name} gives now "
                f"({vision.identity}): make another index, or remove this one"
            )
        return index, vision
    vision = load_extractor(extractor or READY, device)
    about: dict[str, Any] = {"extractor": extractor or READY, "features": vision.identity}
    kept = model is not None
    if model is None:
        model, about = load_ready_model(), {"model": READY, **about}
    wanted = model.settings.get("feature_dim", vision.width)
    if wanted != vision.width:
        raise SelhnError(
            f"{model.name} takes features of {wanted} numbers and {extractor or READY} gives {vision.width}: "
            "name the extractor that it was trained with"
        )
    return create_index(path, model, precision=precision, about=about, keep_model=kept), vision


def _wanted(
    root: Path, pictures: Sequence[Path], known: Mapping[str, Record], told: Mapping[str, Any] | None
) -> tuple[dict[str, Item], list[str]]:
    """What the index should say of every picture, and names with captions that fit none."""
    texts, lost = match_texts([path.relative_to(root).as_posix() for path in pictures], told or {})
    wanted = {}
    for path in pictures:
        name, record = path.relative_to(root).as_posix(), known.get(str(path))
        own = texts[name].texts if name in texts else ()
        if told is None and record is not None:
            own = record.captions
        others = {} if record is None else record.metadata  # what people have written there stays
        wanted[str(path)] = Item(str(path), captions=own, metadata={**others, **picture_facts(path, root)})
    return wanted, lost


def picture_facts(path: Path, root: Path) -> dict[str, Any]:
    """What filters can ask for, and by what a changed file is told."""
    try:
        status = path.stat()
    except OSError:  # gone since it was found; reading it says so
        return {}
    try:
        modified = str(EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000))
    except OverflowError:  # a clock that was wrong by thousands of years
        modified = ""
    folder = path.parent.relative_to(root).as_posix()
    return {"folder": folder, "file": path.name, "modified": modified, "bytes": status.st_size}


def _is_same(item: Item, record: Record | None) -> bool:
    return record is not None and (record.captions, record.metadata) == (item.captions, item.metadata)


def _read_and_added(
    index: AnyIndex, fresh: Sequence[Path], wanted: Mapping[str, Item], vision: Extractor, how: dict[str, Any]
) -> tuple[set[str], PictureReport]:
    """Which of some pictures could be read and are now in the index, and what became of all."""
    used: set[str] = set()
    report = PictureReport(0, 0)
    for first in range(0, len(fresh), PICTURES_AT_ONCE):
        found = extract_pictures(fresh[first : first + PICTURES_AT_ONCE], vision, **how)
        index.add(_items(found, wanted), existing="replace")
        found.features.cache.close()
        used.update(map(str, found.paths))
        notes, refused = (*report.notes, *found.report.notes), (*report.refused, *found.report.refused)
        report = PictureReport(len(used), report.computed + found.report.computed, notes, refused)
    return used, report


def _items(found: Extracted, wanted: Mapping[str, Item]) -> Iterator[Item]:
    for rows in torch.arange(len(found.paths)).split(GATHERED_AT_ONCE):
        regions, mask = found.features.gather(rows)
        for row, own, present in zip(rows.tolist(), regions, mask):
            yield replace(wanted[str(found.paths[row])], regions=own[present])
