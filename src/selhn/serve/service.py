"""What the routes share: the collection, its thread, limits and metrics."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import numpy as np
from fastapi import HTTPException
from jaxtyping import Float

from selhn.base.errors import NotFound, SelhnError
from selhn.pictures import Library
from selhn.pictures.decoding import Decoding, TooSlow
from selhn.pictures.how_far import left_out
from selhn.pictures.indexing import open_examples
from selhn.pictures.named_folders import name_folders, offer_folders
from selhn.pictures.picture_folders import found_index
from selhn.search import Hit, Query
from selhn.serve.batching import Batcher
from selhn.serve.collection import Collection
from selhn.serve.keeper import Keeper, indexing
from selhn.serve.limits import Limits, busy
from selhn.serve.looking import Looking, LookingAtParts
from selhn.serve.messages import LeftOut, ModelMessage, ProgressMessage
from selhn.serve.prometheus import RequestMetrics
from selhn.serve.thumbnails import Thumbnails
from selhn.serve.watched_runs import WatchedRuns
from selhn.towers import open_towers

if TYPE_CHECKING:
    from selhn.models import AbstractMatcher

Value = TypeVar("Value")
DECODERS, READERS = 2, 8
"""Pictures decoded at a time, which may need up to a gigabyte each, and threads that read files."""
QUICK, MOST_SLOW = 0.3, 2
"""CPU seconds that most pictures need at most, and how many slower ones may wait for one decoder."""
PICTURES_AT_ONCE = 16


class Service:
    """A collection, or training runs, or both, ready to answer.

    Args:
        attention: a model that compares regions with words, for `/look`; default is the towers of the index.
        writable: whether items may be added and deleted.
        keeper: brings the index up to date meanwhile.
    """

    def __init__(
        self,
        collection: Collection | None = None,
        runs: WatchedRuns | None = None,
        *,
        limits: Limits | None = None,
        attention: "AbstractMatcher | None" = None,
        writable: bool = False,
        keeper: Keeper | None = None,
    ):
        if collection is None and runs is None:
            raise SelhnError("there is nothing to serve: name an index, or a folder of runs with --runs")
        self.collection, self.runs, self.writable, self.keeper = collection, runs, writable, keeper
        self.limits = limits or Limits()
        self.metrics = RequestMetrics()
        self._readers = anyio.CapacityLimiter(READERS)
        self._own, self._sent = anyio.CapacityLimiter(DECODERS), anyio.CapacityLimiter(DECODERS)
        self._slow = anyio.CapacityLimiter(1)
        self.thumbnails: Thumbnails | None = None
        self.looking: Looking | None = None
        thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.queries: Batcher[Query, list[Hit]] = Batcher(
            lambda queries, wanted: self.searched().answer(queries, wanted),
            observe=self.metrics.batches.observe,
            thread=thread,
        )
        self.pictures: Batcher[Any, Float[np.ndarray, " d"]] = Batcher(
            lambda prepared, wanted: self.searched().embed(prepared), PICTURES_AT_ONCE, thread=thread
        )
        if collection is not None and collection.folders:
            self.thumbnails = Thumbnails()
            if attention is None and collection.towers is not None and collection.towers.has_parts:
                self.looking = LookingAtParts(collection.towers)
        self.attention = attention
        if attention is not None:
            self.looking = self._looking_by(attention)

    def _looking_by(self, attention: "AbstractMatcher") -> Looking:
        from selhn.serve.attention import looking_by  # torch

        if self.collection is None or not self.collection.folders:
            raise SelhnError(
                "--attention needs an index of pictures, whose folders were named on this machine"
            )
        return looking_by(attention, self.collection.library)

    @classmethod
    def open(
        cls,
        path: Path | str | None = None,
        *,
        examples: bool = False,
        runs: Path | None = None,
        attention: Path | None = None,
        writable: bool = False,
        model: Path | None = None,
        extractor: str | None = None,
        folders: Iterable[Path] = (),
    ) -> "Service":
        """The service of an index (by default the one of `selhn index`), of the examples, or of runs alone.

        `attention` (see `Service`) and `model`, of an index without its own, are runs or saved models. `extractor`
        is the one that the index names, if that may be downloaded. `folders` are named, see `named_folders`.
        """
        if examples and path is not None:
            raise SelhnError(f"either {path} or --examples is served, not both: leave one out")
        if model is not None and (examples or (path is None and runs is not None)):
            raise SelhnError("--model is for an index without its own: name that index, or leave --model out")
        if folders and (examples or (path is None and runs is not None)):
            raise SelhnError("--folder is for an index of pictures: name that index, or leave --folder out")
        if examples and writable:
            raise SelhnError("the example pictures cannot be changed: --writable is for an index of your own")
        watched = None if runs is None else WatchedRuns(runs)
        library = None
        if examples:
            library = open_examples()
        elif path is not None or runs is None:
            opened = None if model is None else open_towers(model)
            library = Library.open(found_index(path), opened, extractor=extractor)
            name_folders(library.index, folders)
            offer_folders(library.index, "selhn serve {index} {folders}")
        looking = None if attention is None else _loaded(attention)
        collection = None if library is None else Collection(library)
        return cls(collection, watched, attention=looking, writable=writable)

    @property
    def name(self) -> str:
        return self.collection.library.name if self.collection is not None else "Training runs"

    def searched(self) -> Collection:
        """The collection; raises NotFound if only runs are served."""
        if self.collection is None:
            raise NotFound("no index is served here, only training runs")
        return self.collection

    def written(self) -> Collection:
        """The collection, if it may be changed."""
        collection = self.searched()
        if not self.writable:
            raise HTTPException(403, "this service only reads: start it with --writable to change the index")
        return collection

    async def located(self, id: str) -> Path:
        """The file of an item, which must be in one of the folders."""
        collection = self.searched()
        if not collection.folders:
            raise NotFound(
                "no picture is shown, because no folder of pictures was named for this index on this machine: "
                "`selhn serve` with --folder FOLDER does so"
            )
        path = await self.read(collection.library.picture, id)
        if path is None:
            raise NotFound(f"there is no picture of {id[:80]!r}")
        return path

    async def read(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call something that reads files in a thread."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._readers)

    async def decode(self, function: Callable[..., Value], *arguments: Any, sent: bool = False) -> Value:
        """Call something that decodes a picture in a thread; if the request is cancelled, decoding ends too.

        Pictures `sent` by clients never delay the others, and slow ones never delay quick ones.
        """
        if not sent:
            return await self._decode(self._own, Decoding(), function, *arguments)
        with suppress(TooSlow):
            return await self._decode(self._sent, Decoding(QUICK), function, *arguments)
        if self._slow.statistics().tasks_waiting >= MOST_SLOW:
            raise busy("other pictures that take long to decode")
        return await self._decode(self._slow, Decoding(), function, *arguments)

    async def _decode(
        self,
        limiter: anyio.CapacityLimiter,
        decoding: Decoding,
        function: Callable[..., Value],
        *arguments: Any,
    ) -> Value:
        try:
            return await anyio.to_thread.run_sync(
                decoding.run, function, *arguments, limiter=limiter, abandon_on_cancel=True
            )
        finally:
            decoding.end()

    def progress(self, files: bool = False) -> ProgressMessage:
        """How far indexing is, by this process or by another one; with `files` also what was left out."""
        path = self.searched().index.path
        state, far, message = indexing(path) if self.keeper is None else self.keeper.told()
        return ProgressMessage(
            state=state,
            done=far.done,
            total=far.total,
            seconds_left=far.seconds_left,
            message=message,
            left_out=far.left_out,
            files=[LeftOut(file=file, why=why) for file, why in left_out(path)] if files else None,
        )

    def models(self) -> list[ModelMessage]:
        if self.collection is None:
            return []
        identity, towers = self.collection.index.identity, self.collection.towers
        message = ModelMessage(
            name=identity.model_name,
            role="search",
            digest=identity.model,
            width=identity.width,
            precision=identity.precision,
            extractor=None if towers is None else towers.features,
        )
        if self.attention is None:
            return [message]
        from selhn.eval.stored import digest_of  # torch

        digest = digest_of(self.attention)
        return [message, ModelMessage(name=str(self.attention.name), role="attention", digest=digest)]

    def gauges(self) -> dict[str, tuple[str, float]]:
        found: dict[str, tuple[str, float]] = {}
        if self.collection is not None:
            with suppress(OSError):  # the server may be down; the other numbers are still wanted
                found["index_items"] = ("Items in the index.", len(self.collection.index))
        if self.thumbnails is not None:
            found["thumbnail_bytes"] = ("Bytes of thumbnails kept in memory.", self.thumbnails.bytes)
        return found

    async def close(self) -> None:
        if self.collection is not None and self.collection.duplicates is not None:
            self.collection.duplicates.close()
        await self.pictures.finish()
        await self.queries.close()


def _loaded(path: Path) -> "AbstractMatcher":
    from selhn.models import load_model  # torch

    return load_model(path)
