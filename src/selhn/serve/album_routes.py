"""The routes for albums, and what they take and answer."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from selhn.base.errors import NotFound
from selhn.search.albums import Albums
from selhn.serve.collection import Collection
from selhn.serve.service import Service


class AlbumMessage(BaseModel):
    """An album, and its items that are in the index, in the order of adding."""

    name: str
    ids: list[str]


class AlbumChange(BaseModel):
    """Items to add to an album or to remove from it, and perhaps a new name."""

    model_config = ConfigDict(extra="forbid")
    add: list[str] = []
    remove: list[str] = []
    name: str = ""


def album_routes(router: APIRouter, service: Service) -> None:
    """Albums and what is in them."""

    @router.get("/albums", tags=["items"])
    async def albums() -> list[AlbumMessage]:
        """List the albums; the filter `album = "NAME"` finds what is in one."""
        found = await service.read(_albums(service.searched()).all)
        return [AlbumMessage(name=name, ids=ids) for name, ids in found.items()]

    @router.patch("/album", tags=["writing"])
    async def change_album(name: str, changed: AlbumChange) -> AlbumMessage:
        """Add items to an album, which is created if needed, remove some, or give it another name."""
        kept = _albums(service.written())
        await service.read(kept.change, name, changed.add, changed.remove, changed.name)
        own = changed.name or name
        return AlbumMessage(name=own, ids=(await service.read(kept.all)).get(own, []))

    @router.delete("/album", tags=["writing"], status_code=204, response_class=Response)
    async def delete_album(name: str) -> Response:
        """Delete an album. Its items stay."""
        await service.read(_albums(service.written()).delete, name)
        return Response(status_code=204)


def _albums(collection: Collection) -> Albums:
    if collection.index.albums is None:
        raise NotFound("there are no albums: they need an index in a folder")
    return collection.index.albums
