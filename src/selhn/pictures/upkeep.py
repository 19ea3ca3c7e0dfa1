"""Keeps an index up to date with its folders: the work of a separate process, and how changes are noticed."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from selhn.base.errors import NotFound, Outdated
from selhn.base.files import refuse_links
from selhn.pictures.library import Library
from selhn.pictures.picture_files import is_there, readable_suffixes
from selhn.pictures.plans import Indexed, make_plan
from selhn.pictures.rebuilding import Former
from selhn.pictures.removed import Removed
from selhn.search import Index
from selhn.towers import AbstractTowers, open_towers


def bring_up_to_date(
    path: Path, folders: Sequence[Path], model: Path | str | None = None
) -> Iterator[Indexed]:
    """Make an index agree with folders, newest pictures first; a folder that is empty or missing is skipped.

    Pictures that people removed stay out, see `Removed`.

    If there is no index yet, or only that of a former ready model, wait until another process has created one, see
    `open_or_start_again`. `model` is for an index without its own.
    """
    opened = None if model is None else open_towers(model)
    while not Index.exists(path) or (library := _current(path, opened)) is None:
        refuse_links(path, deep=False)  # an index never appears behind one
        time.sleep(0.05)
    former = Former(path)
    known = (one for one in former.folders if any(map(one.is_relative_to, library.folders)))
    wanted = dict.fromkeys([*folders, *known])
    for folder in filter(is_there, wanted):
        try:
            plan = library.plan(library.scan(folder))
        except NotFound:  # its disk was unplugged, or its last picture is gone: nothing is deleted
            continue
        plan = Removed(library.index).kept_out(former.carried(plan))
        yield library.apply(plan.newest_first(), quiet=True)
    former.remove(wanted)


def _current(path: Path, towers: AbstractTowers | None) -> Library | None:
    try:
        library = Library.open(path, towers)
        _ = library.towers
        return library
    except Outdated:
        if towers is not None:
            raise
        return None


def has_pictures(folder: Path) -> bool:
    """Whether there is a picture below a folder; stops at the first."""
    return any(True for _ in _pictures_below(folder))


def require_pictures(folders: Sequence[Path]) -> None:
    """Refuse a folder that is missing or has no readable pictures, and say which it is."""
    for folder in folders:
        if not has_pictures(folder):
            make_plan(Library.scan(folder), None)


def fingerprint(folder: Path) -> int | None:
    """A number that changes if a picture below a folder is added, changed or removed; None if it has none."""
    found = frozenset(
        (entry.path, status.st_mtime_ns, status.st_size) for entry, status in _pictures_below(folder)
    )
    return hash(found) if found else None


def _pictures_below(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """The files that `find_pictures` would find, in a quarter of its time."""
    waiting, suffixes = [str(folder)], readable_suffixes()
    while waiting:
        with (
            suppress(OSError),
            os.scandir(waiting.pop()) as entries,
        ):  # removed meanwhile, or not readable for us
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif os.path.splitext(entry.name)[1].lower() in suffixes:
                    yield entry, entry.stat()
