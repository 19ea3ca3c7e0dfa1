"""Turns pictures into features: reads, decodes and computes ahead on all cores, and stores in order.

On a CPU each worker takes a picture through all steps on one core. On a GPU, workers read and decode, and batches are
computed there.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged, MissingExtra, SelhnError
from selhn.base.progress import Progress
from selhn.base.types import StoredPrecision
from selhn.pictures.cache import CachedFeatures, FeatureCache, content_key, default_cache
from selhn.pictures.decoding import Picture, decode_picture, decode_video, header_facts
from selhn.pictures.extractor import Extractor, Prepared
from selhn.pictures.picture_files import VIDEOS, is_text, read_bytes, writable
from selhn.pictures.picture_report import PictureReport
from selhn.pictures.picture_sources import PictureInput, PictureInputs
from selhn.pictures.tower_vectors import TowerVectors
from selhn.search.items import moment_id

FEWEST, FIRST_BLOCK, LONGEST_BLOCK = 16, 0.5, 8.0
"""Fewest pictures in a block. Blocks end after 0.5 seconds, then after 1, 2, 4 and from then on 8."""


@dataclass(frozen=True)
class Extracted:
    """The pictures that could be read, their features, and a report on all files."""

    paths: Sequence[Path]
    features: CachedFeatures
    report: PictureReport


@dataclass
class PictureRegions:
    """One picture on its way through the pipeline: first `prepared` or refused, at the end with its regions.

    A video gives several, its moments. The one that stands for it, and has no time in `moment`, comes last,
    so that a video in the index always has all its moments.
    """

    path: Path | PictureInput
    key: bytes = b""
    prepared: Prepared | Any = None
    """Set if its regions are not stored yet."""
    regions: Float[Tensor, "M F"] | None = None
    """All features, as stored, at the end; by towers, one row with the vector."""
    notes: tuple[str, ...] = ()
    refused: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    moment: float | None = None

    @property
    def vector(self) -> Float[np.ndarray, " d"]:
        """What towers made of it."""
        assert self.regions is not None
        return self.regions[0].numpy()

    @property
    def id(self) -> str:
        """Id of its item in an index."""
        return str(self.path) if self.moment is None else moment_id(str(self.path), self.moment)


@dataclass
class Extraction:
    """A pipeline from files to regions: iterate over the pictures that can be read; `report` covers all.

    `store` has the known features, and gets the new ones; see also `extract_pictures`.
    """

    paths: Sequence[Path] | PictureInputs
    extractor: Extractor | TowerVectors
    store: FeatureCache
    batch_size: int = 16
    workers: int | None = None
    root: Path | None = None
    quiet: bool = False
    report: PictureReport = field(default_factory=PictureReport)

    def __post_init__(self) -> None:
        self.progress = Progress(max(1, len(self.paths)), quiet=self.quiet)
        self.cores = torch.get_num_threads()
        self.workers = self.cores if self.workers is None else self.workers
        if self.batch_size < 1 or self.workers < 1:
            raise SelhnError(f"batch_size {self.batch_size} and workers {self.workers} must be at least 1")
        self.in_workers = self.extractor.in_threads
        self._of_model: SelhnError | None = None

    def __iter__(self) -> Generator[PictureRegions, None, None]:
        pictures = self._read_ahead()
        while batch := list(islice(pictures, self.batch_size)):
            self._compute(batch)
            for picture in batch:
                name = writable(picture.path, self.root)
                if picture.moment is None:
                    self.progress.step(f"{self.report.computed} computed")
                if picture.refused:
                    self.report.refused.append((name, picture.refused))
                    continue
                self.report.used += picture.moment is None
                self.report.notes.extend((name, note) for note in picture.notes)
                yield picture
        self.progress.clear()

    def _read_ahead(self) -> Iterator[PictureRegions]:
        """The files in order; some are started before they are needed."""
        assert self.workers is not None
        pool = ThreadPoolExecutor(self.workers, initializer=_use_one_core, initargs=(self.cores,))
        try:
            paths: Iterator[Path | PictureInput] = iter(self.paths)
            ahead = 2 * self.batch_size + 8 * self.workers
            running = deque(pool.submit(self._read, path) for path in islice(paths, ahead))
            while running:
                yield from running.popleft().result()
                running.extend(pool.submit(self._read, path) for path in islice(paths, 1))
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, path: Path | PictureInput) -> list[PictureRegions]:
        try:
            if not is_text(str(path)):
                raise SelhnError("its name is not UTF-8: rename it")
            if isinstance(path, Path) and path.suffix.lower() in VIDEOS:
                return self._read_video(path)
            content = path.read() if isinstance(path, PictureInput) else read_bytes(path)
            key = content_key(content)
            regions = self.store.find(key)
            if regions is not None:
                return [PictureRegions(path, key, regions=regions, facts=header_facts(content, "this file"))]
            picture = decode_picture(content, "this file", resized=self.extractor.resized)
            return [
                PictureRegions(path, key, self._prepare(picture), None, picture.notes, facts=picture.facts)
            ]
        except SelhnError as error:
            if error is self._of_model:
                raise
            return [PictureRegions(path, refused=str(error))]

    def _read_video(self, path: Path) -> list[PictureRegions]:
        """The moments of a video; features are kept by the content of each frame, so that large files are not read."""
        first, *others = decode_video(path.resolve(), "this file", resized=self.extractor.resized)
        found = []
        for frame in (*others, first):
            key = content_key(frame.image.tobytes())
            regions = self.store.find(key)
            prepared = self._prepare(frame) if regions is None else None
            found.append(PictureRegions(path, key, prepared, regions, moment=frame.at, facts=frame.facts))
        times = [frame.at for frame in others]
        found[-1].moment, found[-1].facts = None, {**first.facts, **({"moments": times} if times else {})}
        return found

    def _prepare(self, picture: Picture) -> Prepared | Any:
        try:
            prepared = self.extractor.prepare(picture.image)
            return self.extractor.compute(prepared) if self.in_workers else prepared
        except (Damaged, MissingExtra) as error:  # all pictures would be left out
            self._of_model = error
            raise

    def _compute(self, batch: Sequence[PictureRegions]) -> None:
        """Compute and store what is new; pictures of the same content are stored once."""
        new = {picture.key: picture.prepared for picture in batch if picture.prepared is not None}
        known = {key: regions for key in new if (regions := self.store.find(key)) is not None}
        fresh = {key: prepared for key, prepared in new.items() if key not in known}
        if fresh:
            known |= self.store.put(dict(zip(fresh, self.extractor.extract(list(fresh.values())))))
        self.report.computed += len(fresh)
        for picture in batch:
            if picture.prepared is not None:
                picture.regions, picture.prepared = known[picture.key], None


def in_blocks(
    pictures: Iterable[PictureRegions], most: int, step: Callable[[], None]
) -> Iterator[list[PictureRegions]]:
    """Pictures to write together, few at first so that they can soon be seen; `step` is called for each."""
    block: list[PictureRegions] = []
    began, seconds = time.monotonic(), FIRST_BLOCK
    for picture in pictures:
        step()
        block.append(picture)
        is_time = len(block) >= FEWEST and time.monotonic() - began >= seconds
        if is_time or len(block) >= most:
            yield block
            block, began, seconds = [], time.monotonic(), min(2 * seconds, LONGEST_BLOCK)
    if block:
        yield block


def extract_pictures(
    paths: Sequence[Path],
    extractor: Extractor,
    *,
    cache: Path | None = None,
    precision: StoredPrecision = "float16",
    batch_size: int = 16,
    workers: int | None = None,
    quiet: bool = False,
    root: Path | None = None,
) -> Extracted:
    """The features of picture files; one that cannot be read is left out and named in the report.

    Args:
        cache: folder of the features; by default one in the user's cache folder.
        precision: of the stored features.
        batch_size: pictures that are stored together, and on a GPU computed together.
        workers: pictures in progress at a time, by default one per core.
        root: folder that names in the report are relative to.
    """
    store = FeatureCache(cache or default_cache(), extractor.cached_as, extractor.width, precision)
    extraction = Extraction(paths, extractor, store, batch_size, workers, root, quiet)
    used = [(picture.path, picture.key) for picture in extraction]
    keys = [key for _, key in used]
    regions = len(store.get(keys[:1])[0]) if keys else 1
    return Extracted(
        [path for path, _ in used if isinstance(path, Path)],
        CachedFeatures(store, keys, regions),
        extraction.report,
    )


def _use_one_core(cores: int) -> None:
    """Let torch compute on one core in this thread, and as before in those that start later."""
    torch.get_num_threads()  # the first call in a thread takes over the default
    torch.set_num_threads(1)  # of this thread, and the default of new ones
    restoring = Thread(target=torch.set_num_threads, args=(cores,))
    restoring.start()
    restoring.join()
