"""The routes for search, items, training runs and the service itself."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request, Response
from starlette.requests import ClientDisconnect

from selhn.base.errors import Locked, NotFound, SelhnError
from selhn.base.version import __version__
from selhn.search.items import seconds_of
from selhn.serve import messages, originals
from selhn.serve.album_routes import album_routes
from selhn.serve.collection import Collection
from selhn.serve.problems import PROBLEMS
from selhn.serve.service import Service
from selhn.serve.watched_runs import WatchedRuns

PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The bytes of a JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF or RAW file.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}

FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {}}, "description": "The file."},
    206: {"content": {"*/*": {}}, "description": "The part of the file that was asked for."},
}

Value = TypeVar("Value")
Search = Annotated[messages.SearchRequest, Query()]
TOLD_LIMITS = {"answers": "answers", "query": "query", "bytes": "body", "pixels": "pixels"}
MOST_CAPTIONS = 100
"""Per item; each is encoded."""
PATIENCE, TRY_EVERY = 10.0, 0.1
"""Seconds that a change waits for another process that writes, and between two attempts."""


def api_routes(service: Service) -> APIRouter:
    """Everything below /api/v1."""
    router = APIRouter(prefix="/api/v1", responses=PROBLEMS)

    @router.get("/search", tags=["search"])
    async def search(asked: Search) -> messages.Answers:
        """Search by a sentence, by an item (`like`), or by both."""
        return await _answers(service, asked, None)

    @router.post("/search", tags=["search"], openapi_extra=PICTURE_BODY)
    async def search_by_picture(asked: Search, request: Request) -> messages.Answers:
        """Search by the picture in the body, optionally combined with a sentence or an item."""
        return await _answers(service, asked, await read_picture(request))

    @router.get("/look", tags=["search"])
    async def look(id: str, text: str) -> messages.LookMessage:
        """Which parts of a picture the words of a sentence are about."""
        if service.looking is None:
            raise NotFound("the model of this service cannot compare words with regions")
        _check_length(service, text, "the text")
        path = await _located(service, id)
        moment = seconds_of(id)
        await service.decode(service.looking.prepare, path, moment)
        return await service.queries.run(service.looking.look, path, text, moment)

    _item_routes(router, service)
    _about_routes(router, service)
    _writing_routes(router, service)
    album_routes(router, service)
    _run_routes(router, service)
    return router


def _item_routes(router: APIRouter, service: Service) -> None:
    @router.get("/items", tags=["items"])
    async def items(asked: Annotated[messages.BrowseRequest, Query()]) -> messages.Items:
        """List items, by default in the order of adding."""
        collection = service.searched()
        _check_length(service, asked.where, "the filter")
        number = min(asked.number, service.limits.answers)
        page = asked.first, number, asked.where, asked.order
        records, total, version = await service.queries.run(collection.browse, *page)
        pictures = await service.read(collection.have_pictures, records)
        found = [messages.ItemMessage(**vars(record), picture=has) for record, has in zip(records, pictures)]
        return messages.Items(items=found, total=total, version=version)

    @router.get("/timeline", tags=["items"])
    async def timeline(asked: Annotated[messages.TimelineRequest, Query()]) -> messages.TimelineMessage:
        """Count the items of each month."""
        _check_length(service, asked.where, "the filter")
        found = await service.queries.run(service.searched().timeline, asked.where, asked.order)
        return messages.TimelineMessage(
            total=len(found.shapes),
            months=[messages.MonthMessage(month=month, count=count) for month, count in found.months()],
            version=found.version,
            days=found.days if asked.layout else None,
            shapes=found.shapes if asked.layout else None,
        )

    @router.get("/duplicates", tags=["items"])
    async def duplicates(
        first: Annotated[int, Query(ge=0, le=10**9)] = 0, number: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> messages.DuplicatesMessage:
        """Find pictures that are almost the same: copies, whenever they were taken, and bursts."""
        collection, most = service.searched(), service.limits.answers
        if collection.duplicates is None:
            raise NotFound("near-duplicates need an index in a folder, of a model that gives one vector per picture")
        found = await service.read(collection.alike, first, number)
        if found is None:
            share = collection.duplicates.share
            return messages.DuplicatesMessage(state="computing", share=share, total=0, spare=0, groups=[])
        groups = []
        for group, records in found[0]:
            pictures = await service.read(collection.have_pictures, records[:most])
            items = [messages.ItemMessage(**vars(one), picture=has) for one, has in zip(records, pictures)]
            groups.append(messages.AlikeMessage(kind=group.kind, count=len(records), items=items))
        return messages.DuplicatesMessage(state="ready", share=1, total=found[1], spare=found[2], groups=groups)

    @router.get("/item", tags=["items"])
    async def item(id: str) -> messages.ItemMessage:
        """One item."""
        return await _item(service, service.searched(), id)

    @router.get(
        "/picture",
        tags=["items"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG without EXIF."}, 304: {}},
    )
    async def picture(request: Request, id: str, size: int = 320) -> Response:
        """The picture of an item, of a video one frame, reduced to 160, 320, 640, 1280 or 2560 pixels."""
        path = await _located(service, id)
        assert service.thumbnails is not None
        drawing = service.decode(service.thumbnails.get, path, size, seconds_of(id))
        content, tag = await while_connected(request, drawing)
        headers = {"Cache-Control": "private, max-age=600", "Vary": "Authorization"}
        return await tagged(request, content, tag, "image/jpeg", headers)

    @router.get("/original", tags=["items"], response_class=Response, responses=FILE)
    async def original(request: Request, id: str, download: bool = False) -> Response:
        """The file of a picture or video, unchanged; as a download if asked for, or if browsers cannot show its format.

        A header `Range: bytes=FIRST-LAST` gets that part of it.
        """
        path = await _located(service, id)
        return await service.read(originals.original, path, download, request.headers.get("range", ""))


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of some work, which ends if the client goes away: who scrolls past pictures leaves many behind."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def tagged(request: Request, content: bytes, tag: str, kind: str, headers: dict[str, str]) -> Response:
    """The content, or 304 if the client has the one of this tag."""
    headers = {"ETag": f'"{tag}"', **headers}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


def _about_routes(router: APIRouter, service: Service) -> None:
    @router.get("/about", tags=["service"])
    async def about() -> messages.About:
        """Describe what is served and what the service can do."""
        collection = service.collection
        fields = () if collection is None else (await service.read(collection.fields)).items()
        return messages.About(
            name=service.name,
            version=__version__,
            items=0 if collection is None else await service.read(lambda: collection.index.count(moments=False)),
            can=messages.Can(
                search=collection is not None,
                ask_with_pictures=collection is not None and collection.extractor is not None,
                show_pictures=service.thumbnails is not None,
                look=service.looking is not None,
                duplicates=collection is not None and collection.duplicates is not None,
                albums=collection is not None and collection.index.albums is not None,
                write=service.writable,
                runs=service.runs is not None,
            ),
            fields={name: [messages.FieldValue(value=v, count=n) for v, n in own] for name, own in fields},
            limits={told: getattr(service.limits, name) for told, name in TOLD_LIMITS.items()},
        )

    @router.get("/progress", tags=["service"])
    async def progress(files: bool = False) -> messages.ProgressMessage:
        """Say how far indexing is; what it has added since is visible from now on."""
        told = await service.read(service.progress, files)
        told.items = await service.queries.run(service.searched().count)  # after the state: idle means all are there
        return told

    @router.get("/models", tags=["service"])
    async def models() -> list[messages.ModelMessage]:
        """List the models that the service uses."""
        return service.models()

    @router.get("/health", tags=["service"])
    async def health() -> messages.Health:
        """Say whether the service works; needs no token."""
        stale = service.collection is not None and bool(service.collection.stale)
        return messages.Health(status="stale" if stale else "ok", version=__version__)


def _writing_routes(router: APIRouter, service: Service) -> None:
    @router.post("/items", tags=["writing"], status_code=201, openapi_extra=PICTURE_BODY)
    async def add(request: Request, caption: Annotated[list[str] | None, Query()] = None) -> messages.Added:
        """Add the picture in the body; the same picture always gets the same id and replaces itself."""
        collection = service.written()
        _check_captions(service, caption or [])
        content, pixels = await read_picture(request), service.limits.pixels
        picture = await service.decode(collection.library.decode, content, pixels, sent=True)
        name = await _in_turn(service, collection.library.add, content, pixels, caption or [], None, picture)
        return messages.Added(id=name)

    @router.patch("/item", tags=["writing"])
    async def update(id: str, changed: messages.ItemChange) -> messages.ItemMessage:
        """Replace the captions or the metadata of an item."""
        collection = service.written()
        _check_captions(service, changed.captions or [])
        await _in_turn(service, collection.library.change, id, changed.captions, changed.metadata)
        return await _item(service, collection, id)

    @router.delete("/item", tags=["writing"], status_code=204, response_class=Response)
    async def delete(id: str) -> Response:
        """Remove an item. The file of a picture that was added here is deleted; all other files stay."""
        await _in_turn(service, service.written().library.delete, id)
        return Response(status_code=204)


async def _in_turn(service: Service, change: Callable[..., Value], *arguments: Any) -> Value:
    """Change the index. If another process writes, as one that indexes does now and then, wait; questions do not."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await service.queries.run(change, *arguments)
        except Locked:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(TRY_EVERY)


def _run_routes(router: APIRouter, service: Service) -> None:
    def shown() -> WatchedRuns:
        if service.runs is None:
            raise NotFound("no runs are shown here: start the service with --runs DIR")
        return service.runs

    @router.get("/runs", tags=["runs"])
    async def runs() -> list[messages.RunMessage]:
        """All runs, those written to last first."""
        return await service.read(shown().all)

    @router.get("/runs/log", tags=["runs"])
    async def log(run: str, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> messages.RunLog:
        """The log of a run from a byte on; ask again with the `after` of the answer."""
        return await service.read(shown().read, run, after)

    @router.get("/runs/verdict", tags=["runs"])
    async def verdict(run: str) -> messages.VerdictMessage:
        """Whether a run is healthy, stalled, collapsing, diverging or overfitting, and what helps."""
        return await service.read(shown().verdict, run)


def _check_captions(service: Service, captions: Sequence[str]) -> None:
    if len(captions) > MOST_CAPTIONS:
        raise SelhnError(f"{len(captions):,} captions are too many for an item: give at most {MOST_CAPTIONS}")
    for text in captions:
        _check_length(service, text, "a caption")


async def read_picture(request: Request) -> bytes:
    """The body, if its content type is that of a picture."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("image/"):
        found = f"the body has the content type {kind[:80] or 'none'}"
        raise HTTPException(415, f"{found}: send a picture, Content-Type: image/jpeg")
    return await request.body()


async def _answers(service: Service, asked: Search, content: bytes | None) -> messages.Answers:
    collection, limits = service.searched(), service.limits
    _check_length(service, asked.text, "the text")
    _check_length(service, asked.where, "the filter")
    if asked.k > limits.answers:
        raise SelhnError(f"k is {asked.k}: at most {limits.answers} answers are given")
    if asked.like is not None:  # an unknown id is refused here, before others wait for it
        await service.read(collection.index.get, asked.like)
    regions = None
    if content is not None:
        prepared = await service.decode(collection.library.prepare, content, limits.pixels, sent=True)
        regions = await service.extractions.ask(prepared)
    hits = await service.queries.ask(asked.query(regions))
    pictures = await service.read(collection.have_pictures, hits)
    answers = [messages.HitMessage.of(*pair) for pair in zip(hits, pictures)]
    fit = collection.index.fit
    return messages.Answers(answers=answers, unknown=[] if fit is None else fit.unknown(asked.text or ""))


async def _located(service: Service, id: str) -> Path:
    path = await service.read(service.searched().library.picture, id)
    if path is None:
        raise NotFound(f"there is no picture of {id[:80]!r}")
    return path


async def _item(service: Service, collection: Collection, id: str) -> messages.ItemMessage:
    record = await service.read(collection.index.get, id)
    path = await service.read(collection.library.picture, id)
    return messages.ItemMessage(**vars(record), picture=path is not None)


def _check_length(service: Service, text: str | None, what: str) -> None:
    if text is not None and len(text) > service.limits.query:
        raise SelhnError(f"{what} has {len(text):,} characters: at most {service.limits.query:,} are read")
