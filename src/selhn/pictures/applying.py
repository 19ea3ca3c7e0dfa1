"""Carries out a plan: reads pictures, computes their features, and changes the index while others use it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from selhn.base.files import private_folder, writing
from selhn.base.progress import Progress
from selhn.pictures.cache import FeatureCache, default_cache
from selhn.pictures.extraction import Extraction, PictureRegions, in_blocks
from selhn.pictures.how_far import HowFarFile
from selhn.pictures.picture_files import is_there, read_facts
from selhn.pictures.picture_folders import default_index
from selhn.pictures.plans import OF_VIDEO, Indexed, Plan
from selhn.pictures.tower_vectors import TowerVectors
from selhn.search import Index, Item
from selhn.search.items import whole
from selhn.towers import AbstractTowers

PICTURES_AT_ONCE = 512
"""At most this many pictures are written to the index together; then they can be searched."""
INDEXING_LOCK, PATIENCE = "indexing.lock", 60.0
"""Lock of the process that indexes; and how long it waits for others, who may change items in between."""


def carry_out(
    plan: Plan,
    index: Index,
    towers: AbstractTowers,
    cache: Path | None = None,
    batch_size: int = 16,
    workers: int | None = None,
    quiet: bool = False,
) -> Indexed:
    """Change an index as a plan says. One process does so at a time; others may change items meanwhile.

    The report is written into the folder of the index, or for a server beside `default_index`.
    """
    path, vectors = index.path, TowerVectors(towers)
    out = path if path is None or isinstance(path, Path) else private_folder(default_index().parent)
    others = "; searching works meanwhile"
    alone = writing(path, others, name=INDEXING_LOCK) if isinstance(path, Path) else nullcontext()
    fresh = {item.id: item for item in (*plan.add, *plan.replace)}
    store = FeatureCache(cache or default_cache(), vectors.cached_as, vectors.width, "float32")
    reading = Extraction(list(map(Path, fresh)), vectors, store, batch_size, workers, plan.folder, quiet)
    report, used = reading.report, set[str]()
    report.refused += plan.refused
    how_far = HowFarFile(path, plan.unchanged, len(fresh))
    with alone, closing(store), closing(iter(reading)) as pictures, how_far:
        try:
            for block in in_blocks(pictures, PICTURES_AT_ONCE, lambda: how_far.tell(reading)):
                with index.writing(PATIENCE):
                    index.add([_item(fresh[str(one.path)], one) for one in block], existing="replace")
                used.update(one.id for one in block)
                report.write(plan.folder, out)
            described = _describe(index, plan.describe, reading.workers, quiet)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped: what is done is kept; the same command continues") from None
        former = [*(item.id for item in plan.replace), *plan.moments]
        gone = [*plan.delete, *(name for name in former if name not in used)]
        if (
            gone and (fresh or plan.unchanged) and not is_there(plan.folder)
        ):  # its disk was unplugged meanwhile
            gone = []
        with index.writing(PATIENCE):
            gone = list(index.store.get(gone))
            index.delete(gone)
    file = report.write(plan.folder, out)
    new, changed = (sum(item.id in used for item in some) for some in (plan.add, plan.replace))
    removed = sum(whole(name) == name for name in gone)
    return Indexed(index, plan, new, changed, removed, report, file, described)


def _describe(index: Index, items: Sequence[Item], workers: int | None, quiet: bool) -> int:
    """Add what files say about themselves to items that lack it; vectors stay. Returns their number."""
    told, progress = 0, Progress(max(1, len(items)), quiet=quiet)
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(items), PICTURES_AT_ONCE):
            block = items[first : first + PICTURES_AT_ONCE]
            facts = pool.map(lambda item: read_facts(Path(item.id)), block)
            known = {item.id: _described(item, own) for item, own in zip(block, facts) if own}
            with index.writing(PATIENCE):
                told += index.update([known[name] for name in index.store.get(known)])
            progress.step("dates and places", len(block))
    progress.clear()
    return told


def _item(planned: Item, one: PictureRegions) -> Item:
    """A picture or video of a plan, or a moment of it, in the form that the index stores."""
    known = {name: value for name, value in planned.metadata.items() if name not in OF_VIDEO}
    item = _described(replace(planned, metadata=known), one.facts, one.vector)
    if one.moment is None:
        return item
    return replace(item, id=one.id, captions=(), metadata={**item.metadata, "moment": one.moment})


def _described(item: Item, facts: Mapping[str, Any], vector: Float[np.ndarray, " d"] | None = None) -> Item:
    """The item with what its file says; metadata that it already has are kept."""
    return replace(item, vector=vector, metadata={**facts, **item.metadata})
