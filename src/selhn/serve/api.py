"""Collects all routes; those for search and for the service itself are defined here."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from selhn.base.errors import NotFound, SelhnError
from selhn.base.version import __version__
from selhn.search.items import seconds_of
from selhn.serve import messages, originals
from selhn.serve.album_routes import album_routes
from selhn.serve.item_routes import item_routes, writing_routes
from selhn.serve.looking import LookMessage
from selhn.serve.problems import PROBLEMS
from selhn.serve.run_routes import run_routes
from selhn.serve.service import Service

Search = Annotated[messages.SearchRequest, Query()]
TOLD_LIMITS = {"answers": "answers", "query": "query", "bytes": "body", "pixels": "pixels"}


def api_routes(service: Service) -> APIRouter:
    """Everything below /api/v1."""
    router = APIRouter(prefix="/api/v1", responses=PROBLEMS)

    @router.get("/search", tags=["search"])
    async def search(asked: Search) -> messages.Answers:
        """Search by a sentence, by an item (`like`), or by both."""
        return await _answers(service, asked, None)

    @router.post("/search", tags=["search"], openapi_extra=messages.PICTURE_BODY)
    async def search_by_picture(asked: Search, request: Request) -> messages.Answers:
        """Search by the picture in the body, optionally combined with a sentence or an item."""
        return await _answers(service, asked, await messages.read_picture(request))

    @router.get("/look", tags=["search"])
    async def look(id: str, text: str) -> LookMessage:
        """Which parts of a picture the words of a sentence are about."""
        if service.looking is None:
            raise NotFound("the model of this service cannot compare words with regions")
        service.limits.check_text(text, "the text")
        path, moment = await service.located(id), seconds_of(id)
        await service.decode(service.looking.prepare, path, moment)
        return await service.queries.run(service.looking.look, path, text, moment)

    for add in (item_routes, _about_routes, writing_routes, album_routes, run_routes):
        add(router, service)
    return router


def _about_routes(router: APIRouter, service: Service) -> None:
    @router.get("/about", tags=["service"])
    async def about() -> messages.About:
        """Describe what is served and what the service can do."""
        collection = service.collection
        fields = () if collection is None else (await service.read(collection.fields)).items()
        return messages.About(
            name=service.name,
            version=__version__,
            items=0
            if collection is None
            else await service.read(lambda: collection.index.count(moments=False)),
            can=messages.Can(
                search=collection is not None,
                ask_with_pictures=collection is not None and collection.towers is not None,
                show_pictures=service.thumbnails is not None,
                look=service.looking is not None,
                duplicates=collection is not None and collection.duplicates is not None,
                albums=collection is not None and collection.index.albums is not None,
                write=service.writable,
                runs=service.runs is not None,
            ),
            fields={name: [messages.FieldValue(value=v, count=n) for v, n in own] for name, own in fields},
            limits={told: getattr(service.limits, name) for told, name in TOLD_LIMITS.items()},
            shown=sorted(originals.SHOWN),
        )

    @router.get("/progress", tags=["service"])
    async def progress(files: bool = False) -> messages.ProgressMessage:
        """Say how far indexing is, and let searches see what it has added."""
        told = await service.read(service.progress, files)
        told.items = await service.queries.run(
            service.searched().count
        )  # read after the state, so that idle means all are there
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


async def _answers(service: Service, asked: Search, content: bytes | None) -> messages.Answers:
    collection, limits = service.searched(), service.limits
    limits.check_text(asked.text, "the text")
    limits.check_text(asked.where, "the filter")
    if asked.k > limits.answers:
        raise SelhnError(f"k is {asked.k}: at most {limits.answers} answers are given")
    if asked.like is not None:  # an unknown id is refused here, before others wait for it
        await service.read(collection.index.get, asked.like)
    vector = None
    if content is not None:
        prepared = await service.decode(collection.library.prepare, content, limits.pixels, sent=True)
        vector = await service.pictures.ask(prepared)
    hits = await service.queries.ask(asked.query(vector))
    pictures = await service.read(collection.have_pictures, hits)
    answers = [messages.HitMessage.of(*pair) for pair in zip(hits, pictures)]
    fit = collection.index.fit
    return messages.Answers(answers=answers, unknown=[] if fit is None else fit.unknown(asked.text or ""))
