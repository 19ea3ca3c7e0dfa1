"""The routes for albums."""

from fastapi import APIRouter, Response

from selhn.base.errors import NotFound
from selhn.search.albums import Albums
from selhn.serve import messages
from selhn.serve.collection import Collection
from selhn.serve.service import Service


def album_routes(router: APIRouter, service: Service) -> None:
    """Albums and what is in them."""

    @router.get("/albums", tags=["items"])
    async def albums() -> list[messages.AlbumMessage]:
        """List the albums; the filter `album = "NAME"` finds what is in one."""
        found = await service.read(_albums(service.searched()).all)
        return [messages.AlbumMessage(name=name, ids=ids) for name, ids in found.items()]

    @router.patch("/album", tags=["writing"])
    async def change_album(name: str, changed: messages.AlbumChange) -> messages.AlbumMessage:
        """Add items to an album, which is created if needed, remove some, or give it another name."""
        kept = _albums(service.written())
        await service.read(kept.change, name, changed.add, changed.remove, changed.name)
        own = changed.name or name
        return messages.AlbumMessage(name=own, ids=(await service.read(kept.all)).get(own, []))

    @router.delete("/album", tags=["writing"], status_code=204, response_class=Response)
    async def delete_album(name: str) -> Response:
        """Delete an album. Its items stay."""
        await service.read(_albums(service.written()).delete, name)
        return Response(status_code=204)


def _albums(collection: Collection) -> Albums:
    if collection.index.albums is None:
        raise NotFound("there are no albums: they need an index in a folder")
    return collection.index.albums
