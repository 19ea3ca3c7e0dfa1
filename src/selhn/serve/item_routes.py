"""The routes for items: lists of them, their pictures and files, and changes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect

from selhn.base.errors import Locked, NotFound, SelhnError
from selhn.search import Record
from selhn.search.items import seconds_of
from selhn.serve import messages, originals
from selhn.serve.service import Service

FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {}}, "description": "The file."},
    206: {"content": {"*/*": {}}, "description": "The part of the file that was asked for."},
}
Value = TypeVar("Value")
MOST_CAPTIONS = 100
"""Captions of an item; each is encoded."""
PATIENCE, TRY_EVERY = 10.0, 0.1
"""Seconds that a change waits for another process that writes, and between two attempts."""


def item_routes(router: APIRouter, service: Service) -> None:
    """Lists of items, their pictures and files."""

    @router.get("/items", tags=["items"])
    async def items(asked: Annotated[messages.BrowseRequest, Query()]) -> messages.Items:
        """List items, by default in the order of adding."""
        collection = service.searched()
        service.limits.check_text(asked.where, "the filter")
        number = min(asked.number, service.limits.answers)
        page = asked.first, number, asked.where, asked.order
        records, total, version = await service.queries.run(collection.browse, *page)
        return messages.Items(items=await _told(service, records), total=total, version=version)

    @router.get("/timeline", tags=["items"])
    async def timeline(asked: Annotated[messages.TimelineRequest, Query()]) -> messages.TimelineMessage:
        """Count the items of each month."""
        service.limits.check_text(asked.where, "the filter")
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
            raise NotFound(
                "near-duplicates need an index in a folder, of a model that gives one vector per picture"
            )
        found = await service.read(collection.alike, first, number)
        if found is None:
            share = collection.duplicates.share
            return messages.DuplicatesMessage(state="computing", share=share, total=0, spare=0, groups=[])
        groups = []
        for group, records in found[0]:
            items = await _told(service, records[:most])
            groups.append(messages.AlikeMessage(kind=group.kind, count=len(records), items=items))
        return messages.DuplicatesMessage(
            state="ready", share=1, total=found[1], spare=found[2], groups=groups
        )

    @router.get("/item", tags=["items"])
    async def item(id: str) -> messages.ItemMessage:
        """One item."""
        return await _item(service, id)

    @router.get(
        "/picture",
        tags=["items"],
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG without EXIF."}, 304: {}},
    )
    async def picture(request: Request, id: str, size: int = 320) -> Response:
        """The picture of an item (for a video, one frame), reduced to 160, 320, 640, 1280 or 2560 pixels."""
        path = await service.located(id)
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
        path = await service.located(id)
        return await service.read(originals.original, path, download, request.headers.get("range", ""))


def writing_routes(router: APIRouter, service: Service) -> None:
    """Pictures that are added, changed and removed."""

    @router.post("/items", tags=["writing"], status_code=201, openapi_extra=messages.PICTURE_BODY)
    async def add(request: Request, caption: Annotated[list[str] | None, Query()] = None) -> messages.Added:
        """Add the picture in the body; the same picture always gets the same id and replaces itself."""
        collection = service.written()
        _check_captions(service, caption or [])
        content, pixels = await messages.read_picture(request), service.limits.pixels
        picture = await service.decode(collection.library.decode, content, pixels, sent=True)
        name = await _in_turn(service, collection.library.add, content, pixels, caption or [], None, picture)
        return messages.Added(id=name)

    @router.patch("/item", tags=["writing"])
    async def update(id: str, changed: messages.ItemChange) -> messages.ItemMessage:
        """Replace the captions or the metadata of an item."""
        collection = service.written()
        _check_captions(service, changed.captions or [])
        await _in_turn(service, collection.library.change, id, changed.captions, changed.metadata)
        return await _item(service, id)

    @router.delete("/item", tags=["writing"], status_code=204, response_class=Response)
    async def delete(id: str) -> Response:
        """Remove an item. The file of a picture that was added here is deleted; all other files stay."""
        await _in_turn(service, service.written().library.delete, id)
        return Response(status_code=204)


async def _item(service: Service, id: str) -> messages.ItemMessage:
    return (await _told(service, [await service.read(service.searched().index.get, id)]))[0]


async def _told(service: Service, records: Sequence[Record]) -> list[messages.ItemMessage]:
    """What a client is told about some items."""
    pictures = await service.read(service.searched().have_pictures, records)
    return [messages.ItemMessage(**vars(record), picture=has) for record, has in zip(records, pictures)]


async def _in_turn(service: Service, change: Callable[..., Value], *arguments: Any) -> Value:
    """Change the index. Waits while another process writes, such as one that indexes; questions do not."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await service.queries.run(change, *arguments)
        except Locked:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(TRY_EVERY)


def _check_captions(service: Service, captions: Sequence[str]) -> None:
    if len(captions) > MOST_CAPTIONS:
        raise SelhnError(f"{len(captions):,} captions are too many for an item: give at most {MOST_CAPTIONS}")
    for text in captions:
        service.limits.check_text(text, "a caption")


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of some work. It is cancelled if the client goes away, as by scrolling past pictures."""

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
    """The content, or 304 if the client has it already, by its tag."""
    headers = {"ETag": f'"{tag}"', **headers}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
