"""Many pictures to features: read and decoded by threads, computed in batches, kept as they come."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from selhn.base.errors import SelhnError
from selhn.base.progress import Progress
from selhn.pictures.cache import CachedFeatures, FeatureCache, Storage, content_key, default_cache
from selhn.pictures.extractor import Extractor, Prepared
from selhn.pictures.files import decode_picture, read_bytes


@dataclass(frozen=True)
class PictureReport:
    """What became of the files."""

    used: int
    computed: int
    """Pictures whose features were not in the cache."""
    notes: tuple[tuple[str, str], ...] = ()
    """Pictures that are used, and what was done to them."""
    refused: tuple[tuple[str, str], ...] = ()
    """Files that are not used, and why."""

    def __str__(self) -> str:
        head = f"{self.used:,} pictures used ({self.computed:,} computed now), {len(self.refused):,} files left out"
        return "\n".join(
            [
                head,
                *(f"  note: {name}: {what}" for name, what in self.notes),
                *(f"  left out: {name}: {why}" for name, why in self.refused),
            ]
        )


@dataclass(frozen=True)
class Extracted:
    """The pictures that could be read, their features, and what became of all files."""

    paths: tuple[Path, ...]
    keys: tuple[bytes, ...]
    features: CachedFeatures
    report: PictureReport


@dataclass
class _Read:
    """One file on its way: known to the cache, prepared for the backbone, or refused."""

    path: Path
    key: bytes = b""
    prepared: Prepared | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


@dataclass
class _Notes:
    notes: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    computed: int = 0


def extract_pictures(
    paths: Sequence[Path],
    extractor: Extractor,
    *,
    cache: Path | None = None,
    storage: Storage = "float16",
    batch_size: int = 16,
    workers: int = 2,
    quiet: bool = False,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Extracted:
    """The features of picture files; one that cannot be read is left out and named in the report.

    Args:
        cache: folder of the features; by default one in the user's cache folder.
        workers: threads that read and decode.
        root: folder that names in the report are given from.
        progress: of longer work that this is a part of.
    """
    if batch_size < 1 or workers < 1:
        raise SelhnError(f"batch_size {batch_size} and workers {workers} must be at least 1")
    store = FeatureCache(cache or default_cache(), extractor.identity, extractor.width, storage)
    found = _Notes()
    name = _namer(root)
    used: list[_Read] = []
    waiting: list[_Read] = []
    own_progress = progress is None
    progress = progress or Progress(max(1, len(paths)), quiet=quiet)

    def compute() -> None:
        fresh = {item.key: item for item in waiting if not store.holds(item.key)}
        prepared = [item.prepared for item in fresh.values() if item.prepared is not None]
        if prepared:
            store.put(dict(zip(fresh, extractor.extract(prepared))))
        found.computed += len(prepared)
        for item in waiting:
            item.prepared = None
        progress.step(f"{found.computed} computed", len(waiting))
        waiting.clear()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoders warn of damaged metadata; what matters is in the report
        for item in _read_ahead(paths, extractor, store, workers, 2 * batch_size):
            if item.refused:
                found.refused.append((name(item.path), item.refused))
                progress.step(f"{found.computed} computed")
                continue
            used.append(item)
            found.notes.extend((name(item.path), note) for note in item.notes)
            if item.prepared is None:
                progress.step(f"{found.computed} computed")
                continue
            waiting.append(item)
            if len(waiting) == batch_size:
                compute()
        if waiting:
            compute()
    if own_progress:
        progress.clear()
    keys = tuple(item.key for item in used)
    regions = len(store.get(keys[:1])[0]) if keys else 1
    report = PictureReport(len(used), found.computed, tuple(found.notes), tuple(found.refused))
    return Extracted(tuple(item.path for item in used), keys, CachedFeatures(store, keys, regions), report)


def _read_ahead(
    paths: Sequence[Path], extractor: Extractor, store: FeatureCache, workers: int, ahead: int
) -> Iterator[_Read]:
    """The files in order, some of them read before they are asked for."""

    def read(path: Path) -> _Read:
        try:
            if not is_text(str(path)):
                raise SelhnError("its name is not UTF-8: rename it")
            content = read_bytes(path)
            key = content_key(content)
            if store.holds(key):
                return _Read(path, key)
            picture = decode_picture(content, "this file")
            return _Read(path, key, extractor.prepare(picture.image), picture.notes)
        except ValueError as error:
            return _Read(path, refused=str(error))

    with ThreadPoolExecutor(workers) as pool:
        running: deque[Future[_Read]] = deque()
        for path in paths:
            running.append(pool.submit(read, path))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def is_text(name: str) -> bool:
    """Whether a file name is Unicode; on some systems it may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _namer(root: Path | None) -> Callable[[Path], str]:
    """Names that can be written down."""

    def name(path: Path) -> str:
        shown = path.relative_to(root).as_posix() if root is not None else str(path)
        return shown.encode("utf-8", "backslashreplace").decode()

    return name
