"""What has to change in an index so that it agrees with a folder of pictures, and what was changed."""

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from selhn.base.errors import MissingExtra, NotFound, SelhnError
from selhn.base.names import printable
from selhn.data.formats.captions import match_texts, read_picture_texts
from selhn.pictures.facts import FACTS
from selhn.pictures.picture_files import Found, is_text, missing_packages
from selhn.pictures.picture_report import PictureReport
from selhn.search import Index, Item
from selhn.search.items import whole

SHOWN = 10
"""Most kinds of files, and pictures of a plan, that are named."""
EPOCH = datetime(1970, 1, 1)
OF_FILE, OF_VIDEO = ("folder", "file", "modified", "bytes"), ("moment", "moments")
"""Metadata that show whether a file has changed; seconds of a moment, and of all a video's but the first."""
WRITTEN_BY_INDEXING = (*OF_FILE, *OF_VIDEO)
"""Only indexing can write these. People can correct `FACTS`."""


@dataclass(frozen=True)
class Plan:
    """Changes of an index; items have no regions yet."""

    folder: Path
    add: Sequence[Item]
    replace: Sequence[Item]
    """Files, captions or metadata that have changed."""
    delete: Sequence[str]
    unchanged: int
    refused: Sequence[tuple[str, str]]
    """Folders that could not be listed and captions without a picture, and why."""
    others: Mapping[str, int]
    """Number of files that are not pictures, by extension."""
    skipped: Mapping[str, int]
    """Folders and links that were not followed, see `Found.skipped`."""
    describe: Sequence[Item] = ()
    """Unchanged items that were indexed before metadata were read from the files themselves."""
    moments: Sequence[str] = ()
    """Moments of videos that have changed or are gone; they are removed too, unless they are found again."""

    def newest_first(self) -> "Plan":
        """This plan with pictures added by the time their files changed, latest first."""
        ordered = sorted(self.add, key=lambda item: str(item.metadata.get("modified", "")), reverse=True)
        return replace(self, add=ordered)

    def __str__(self) -> str:
        head = f"{len(self.add):,} pictures to add, {len(self.replace):,} to read again, "
        head += f"{len(self.delete):,} to remove, {self.unchanged:,} unchanged"
        lists = {
            "add": [item.id for item in self.add],
            "read again": [item.id for item in self.replace],
            "remove": self.delete,
            "left out": [f"{name}: {why}" for name, why in self.refused],
        }
        lines = [head]
        for kind, names in lists.items():
            lines += [f"  {kind}: {printable(name)}" for name in names[:SHOWN]]
            lines += [f"  {kind}: and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
        if self.describe:
            lines.append(
                f"  date, camera, size and place are read for {len(self.describe):,} of the unchanged"
            )
        return "\n".join([*lines, *self.beside()])

    def beside(self) -> list[str]:
        """Lines about what is in the folder but not in the index."""
        missing, unread, kinds = missing_packages(), [], []
        for suffix, number in self.others.items():
            if suffix in missing:
                unread.append(f"{number:,} {suffix} (pip install {missing[suffix]})")
            else:
                kinds.append(f"{number:,} {suffix or 'without extension'}")
        skipped = [f"{number:,} {what if number > 1 else what[:-1]}" for what, number in self.skipped.items()]
        lines = {"need a package": unread, "not pictures, by extension": kinds, "not followed": skipped}
        return [f"  {what}: {printable(', '.join(own))}" for what, own in lines.items() if own]


@dataclass(frozen=True, eq=False)
class Indexed:
    """An index of pictures, and how a plan changed it."""

    index: Index
    plan: Plan
    added: int
    changed: int
    removed: int
    report: PictureReport
    """Report on the files that were read, that is, all except unchanged ones."""
    report_file: Path | None
    """None for an index in memory."""
    described: int = 0
    """Unchanged pictures that got metadata from their files, see `Plan.describe`."""

    def __str__(self) -> str:
        head = f"{self.added:,} picture{'s' * (self.added != 1)} added, {self.changed:,} changed, "
        head += f"{self.removed:,} removed, {self.plan.unchanged:,} unchanged; {len(self.report.refused):,} left out"
        if self.described:
            head += f"\n  date, camera, size and place were read for {self.described:,} of the unchanged"
        told = replace(self.report, notes=[]).describe(self.report_file or "").split("\n")[1:]
        return "\n".join([head, *told, *self.plan.beside()])


def make_plan(
    found: Found, index: Index | None, captions: Path | str | None = None, remove_missing: bool = False
) -> Plan:
    """Compare the pictures of a folder with an index; None stands for an empty one.

    A picture has changed if its size, its time of change or its captions in the file of `captions` have.
    Captions and metadata that people wrote into the index are kept; only the `FACTS` of a file that has changed
    are what the file says. Other folders are left alone. A folder without any picture, whose disk may not be
    mounted, is an error unless `remove_missing`.
    """
    root = found.folder
    below = {"id": {"like": glob.escape(str(root).rstrip(os.sep) + os.sep) + "*"}}
    every = [] if index is None else list(index.records(below))
    known = {one.id: one for one in every if whole(one.id) == one.id}
    others = Counter(path.suffix.lower() if is_text(path.suffix) else "" for path in found.others)
    if not found.pictures and not (every and remove_missing):
        raise _no_pictures(root, len(known), others)
    told = None if captions is None else read_picture_texts(captions)
    texts, unmatched = match_texts([path.relative_to(root).as_posix() for path in found.pictures], told or {})
    add, changed, bare = [], [], []
    for path in found.pictures:
        record = known.get(str(path))
        own = texts.get(path.relative_to(root).as_posix())
        if record is None:
            add.append(Item(str(path), None, None, own.texts if own else (), picture_facts(path, root)))
            continue
        lines = record.captions if told is None else own.texts if own else ()
        item = Item(record.id, None, None, lines, kept_metadata(record.metadata, picture_facts(path, root)))
        if (item.captions, item.metadata) != (record.captions, record.metadata):
            changed.append(item)
        elif "width" not in item.metadata:  # every described picture has it
            bare.append(item)
    # Nothing below a folder that cannot be listed now is known to be gone,
    # and a picture whose package is missing now is still there.
    there = set(map(str, [*found.pictures, *found.others]))
    closed = [path for path, _ in found.closed]
    gone = [name for name in known if name not in there and not any(map(Path(name).is_relative_to, closed))]
    refused = [(str(path), why) for path, why in found.closed]
    refused += [(name, f"is named in {captions}, but not used") for name in unmatched]
    unchanged = len(found.pictures) - len(add) - len(changed)
    stay = known.keys() - {item.id for item in changed} - set(gone)
    moments = [one.id for one in every if one.id not in known and whole(one.id) not in stay]
    kinds = dict(others.most_common(SHOWN))
    return Plan(root, add, changed, gone, unchanged, refused, kinds, found.skipped, bare, moments)


def kept_metadata(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Old metadata of a file updated by the new; if the file has changed, its `FACTS` must be read again."""
    if any(now.get(name) != before.get(name) for name in ("modified", "bytes")):
        before = {name: value for name, value in before.items() if name not in (*FACTS, *OF_VIDEO)}
    return {**before, **now}


def _no_pictures(root: Path, known: int, others: Counter[str]) -> SelhnError:
    missing = missing_packages()
    if packages := sorted({missing[suffix] for suffix in others if suffix in missing}):
        return MissingExtra(
            f"the pictures and videos in {root} need more packages: pip install {' '.join(packages)}"
        )
    if known:
        return NotFound(
            f"{root} holds no pictures now, and the index has {known:,} from it. If its disk is not mounted, "
            "mount it; if they are gone for good, add --remove-missing, which removes them from the index"
        )
    kinds = ", ".join(
        f"{number:,} {suffix or 'without extension'}" for suffix, number in others.most_common(SHOWN)
    )
    but = f" (but {kinds})" if kinds else ""
    return NotFound(f"{root} holds no pictures{but}: name a folder with .jpg, .png or .heic files")


def picture_facts(path: Path, root: Path) -> dict[str, Any]:
    """Metadata that filters can use and that show whether a file has changed."""
    try:
        status = path.stat()
    except OSError:  # removed since it was found; reading it will report that
        return {}
    try:
        modified = str(EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000))
    except OverflowError:  # a clock that was wrong by thousands of years
        modified = ""
    folder = path.parent.relative_to(root).as_posix()
    return dict(zip(OF_FILE, (folder, path.name, modified, status.st_size)))
