"""Turns pictures into shards of vectors: in one process, one after the other, or with Ray on many machines.

Every shard is made by the same call, in batches that depend only on its own list, and on a CPU each sum is
computed by one core. So the files are the same, bit for bit, for any number of processes on processors of one kind.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selhn.base.device import choose_device
from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import refuse_links, writing
from selhn.base.names import printable
from selhn.base.progress import Progress
from selhn.pictures.cache import Uncached
from selhn.pictures.extraction import Extraction, PictureRegions
from selhn.pictures.extractor import Extractor
from selhn.pictures.library import Library
from selhn.pictures.picture_sources import PictureInput, PictureInputs, list_source
from selhn.pictures.plans import picture_facts
from selhn.pictures.tower_vectors import TowerVectors
from selhn.search import Item, Record
from selhn.search.embedded import Embedded, EmbeddedRow, import_pyarrow
from selhn.search.encoding import encode_items
from selhn.search.shards import PARTIAL, ShardDone, Shards
from selhn.towers import AbstractTowers, open_towers
from selhn.towers.ready import READY

ROWS = 10_000
"""Pictures per shard: minutes of work for one core, the most that a killed process loses."""
ENCODED_AT_ONCE = 256
UNIT = 1e-3
SHOWN = 20


@dataclass
class ShardEmbedder:
    """Makes the shards of a folder that was planned, by number; a shard that is already there is only verified.

    Args:
        out: the folder.
        source, root: see `embed_pictures`.
        towers, extractor: see `embed_pictures`.
        workers: pictures read and computed at a time, by default one per core.
        retry: whether to make shards again from which pictures were left out.
        step: is told how many pictures were finished.
    """

    out: Path
    source: Path | str
    root: Path | None = None
    towers: str | Path | AbstractTowers = READY
    extractor: str | Extractor | None = None
    device: str = "cpu"
    workers: int | None = None
    retry: bool = False
    step: Callable[[int], None] = lambda number: None

    @cached_property
    def library(self) -> Library:
        """The towers, with an extractor that fits them if they take regions, as for an index."""
        towers = open_towers(self.towers) if isinstance(self.towers, str | Path) else self.towers
        return Library.create(None, towers, self.extractor, device=choose_device(self.device))

    @cached_property
    def shards(self) -> Shards:
        planned = Shards.open(self.out)
        planned.identity.require(self.library.index.towers, self.out)
        return planned

    def __call__(self, number: int) -> ShardDone:
        with suppress(Damaged, NotFound):
            done = self.shards.done(number)
            if not (self.retry and done.left_out):
                self.step(done.rows + done.left_out)
                return done
        vectors, columns = TowerVectors(self.library.index.towers), self.shards.about["columns"]
        inputs = PictureInputs(self.shards.entries(number), columns or {}, Path(self.source), self.root)
        rows: list[EmbeddedRow] = []
        workers = self.workers or torch.get_num_threads()
        with _one_core():
            reading = Extraction(inputs, vectors, Uncached(vectors.width), workers=workers, quiet=True)
            pictures, told = iter(reading), 0
            while block := list(islice(pictures, ENCODED_AT_ONCE)):
                rows += self._rows(block, with_texts=bool(columns and columns["caption"]))
                self.step(len(rows) + len(reading.report.refused) - told)
                told = len(rows) + len(reading.report.refused)
        self.step(len(inputs) - told)
        return self.shards.write(number, rows, reading.report.refused)

    def _rows(self, block: list[PictureRegions], with_texts: bool) -> Iterator[EmbeddedRow]:
        items = [self._item(picture) for picture in block]
        records = [Record.of(item) for item in items]
        width = self.shards.identity.width
        found = map(torch.from_numpy, encode_items(self.library.index.towers, items, records, width))
        embedded = Embedded(records, *found)
        if float((embedded.images.norm(dim=1) - 1).abs().max()) > UNIT:
            raise SelhnError(
                f"{self.shards.identity.model_name} gives vectors that are not of unit length, and these files hold "
                "no others: use another model, or make an index with `selhn index`"
            )
        for row in embedded.rows("image"):
            # If only some pictures have captions, rows must still line up: zeros match no text.
            is_bare = with_texts and row.text is None
            yield row._replace(text=np.zeros_like(row.image)) if is_bare else row

    def _item(self, picture: PictureRegions) -> Item:
        own, root = picture.path, self.shards.about["root"]
        assert isinstance(own, PictureInput)
        file = picture_facts(Path(own.name), Path(root)) if root else {}
        captions = (own.caption,) if own.caption else ()
        return Item(own.name, None, picture.vector, captions, {**own.metadata, **picture.facts, **file})


@contextmanager
def _one_core() -> Iterator[None]:
    """Torch computes on one core: on several, the order of a sum depends on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class EmbeddedPictures:
    """A complete folder of embeddings."""

    shards: Shards
    rows: int
    left_out: int

    def __str__(self) -> str:
        identity, folder = self.shards.identity, self.shards.folder
        head = f"{self.rows:,} pictures embedded, {self.left_out:,} left out; {folder}: {len(self.shards):,} shards, "
        lines = [f"{head}{identity.width} numbers each in float16, by {identity.model_name}"]
        left_out = self.shards.left_out(SHOWN)
        lines += [f"  left out: {printable(name)}: {printable(why)}" for name, why in left_out]
        if self.left_out > SHOWN:
            lines.append(f"  and {self.left_out - SHOWN:,} more in {folder / 'left_out'}")
        return "\n".join(lines)


def embed_pictures(
    source: Path | str,
    out: Path | str,
    *,
    root: Path | str | None = None,
    towers: str | Path | AbstractTowers = READY,
    extractor: str | Extractor | None = None,
    rows_per_shard: int = ROWS,
    column: str | None = None,
    caption: str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    retry: bool = False,
    ray: str | None = None,
    processes: int | None = None,
    quiet: bool = False,
) -> EmbeddedPictures:
    """Embed a collection of pictures into a folder of shards, in the layout of clip-retrieval.

    What a shard is made from is fixed when the folder is begun. If the call was interrupted, or files of the
    folder are missing or damaged, the same call makes only what is not there. Pictures that cannot be read
    are left out and listed.

    Args:
        source: a folder of pictures; a list of files, one per line; or Parquet, a file or a folder, with a column
            of paths or of pictures. Nothing is downloaded.
        root: the folder below which pictures are read that a list or Parquet names; by default that of the source.
        towers: towers, or a name that `open_towers` takes: "ready", a folder, a run, or both towers of another library.
        extractor: for towers that take regions; see `load_extractor`.
        rows_per_shard: pictures per shard.
        column, caption: columns of Parquet; see `list_source`.
        workers: pictures in progress at a time, by default one per core; with Ray, per process, by default 1.
        retry: make the shards again from which pictures were left out.
        ray: address of a Ray cluster that makes the shards, or "local" to start one here; see `embed_on_ray`. All
            its machines must have selhn, and the same folders.
        processes: Ray processes on all machines together; by default as many as cores or GPUs allow.
    """
    out = Path(out).expanduser().absolute()
    import_pyarrow()
    if ray is not None:
        from selhn.pictures.on_ray import embed_on_ray, import_ray

        import_ray(ray)
    place = str(Path(source).expanduser().absolute())
    settings: dict[str, Any] = {
        "out": out,
        "source": place,
        "root": root and Path(root).expanduser().absolute(),
        "towers": towers,
        "extractor": extractor,
        "device": device,
        "retry": retry,
    }
    embedder = ShardEmbedder(**{**settings, "workers": workers, "device": "cpu" if ray else device})
    asked = {"source": place, "rows": rows_per_shard, "column": column, "caption": caption}
    out.mkdir(parents=True, exist_ok=True)
    refuse_links(out, deep=False)
    with writing(out):
        shards = _planned(out, embedder, asked)
        shutil.rmtree(out / PARTIAL, ignore_errors=True)  # left by killed processes
        shown = Progress(shards.pictures, quiet=quiet)
        step = partial(shown.step, "pictures")
        try:
            if ray is None:
                embedder.step = step
                done = [embedder(number) for number in range(len(shards))]
            else:
                done = list(embed_on_ray(settings, len(shards), ray, processes, workers or 1, step))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped: what is done is kept; the same command continues") from None
        shown.clear()
        shutil.rmtree(out / PARTIAL, ignore_errors=True)
    return EmbeddedPictures(shards, sum(one.rows for one in done), sum(one.left_out for one in done))


def _planned(out: Path, embedder: ShardEmbedder, asked: dict[str, Any]) -> Shards:
    """The shards of a folder that was begun with the same settings, or of a new one."""
    identity = embedder.library.index.identity
    if Shards.exist(out):
        shards = Shards.open(out)
        shards.require(identity, asked)
        return shards
    foreign = [path.name for path in out.iterdir() if path.name not in ("lock", "inputs")]
    if foreign:
        raise SelhnError(f"{out} holds {foreign[0]!r}, which selhn embed did not write: give a new folder")
    how, entries = list_source(
        asked["source"], asked["rows"], asked["column"], asked["caption"], embedder.root
    )
    return Shards.plan(out, identity, {**asked, **how}, entries)
