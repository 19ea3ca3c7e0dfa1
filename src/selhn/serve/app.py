"""The application: routes and page, behind guard, limits and metrics."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from importlib import resources

from fastapi import FastAPI, Request, Response

from selhn.base.version import __version__
from selhn.serve.access import check_token
from selhn.serve.api import api_routes
from selhn.serve.guard import Guard
from selhn.serve.item_routes import tagged
from selhn.serve.limits import Bounded
from selhn.serve.media_cookie import MediaCookie
from selhn.serve.problems import PROBLEMS, add_problems
from selhn.serve.prometheus import CONTENT_TYPE, Measured
from selhn.serve.service import Service

PAGES = {"/": "index.html", "/docs": "docs.html"}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(service: Service, *, token: str | None = None, hosts: Iterable[str] = ()) -> FastAPI:
    """The service as an ASGI application.

    Args:
        token: the token that clients must send as `Authorization: Bearer TOKEN`; None for no token.
        hosts: names of the service besides localhost.
    """
    if token is not None:
        check_token(token)
    media = MediaCookie()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="selhn",
        version=__version__,
        description='Search pictures by sentences and by pictures. Errors are {"error": "..."}.',
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(api_routes(service))
    _serve_page(app)

    @app.post(
        "/api/v1/cookie", tags=["service"], status_code=204, response_class=Response, responses=PROBLEMS
    )
    async def cookie(request: Request) -> Response:
        """Give a browser a cookie that opens `picture` and `original` for an hour, in place of the token."""
        answer = Response(status_code=204)
        if token is not None:
            media.give(answer, request.headers.get("origin", "").startswith("https:"))
        return answer

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        gauges = await service.read(service.gauges)
        return Response(service.metrics.text(gauges), media_type=CONTENT_TYPE)

    add_problems(app)
    app.add_middleware(Bounded, limits=service.limits)
    app.add_middleware(Guard, token=token, hosts=hosts, cookie=media)
    app.add_middleware(Measured, metrics=service.metrics)
    return app


def _serve_page(app: FastAPI) -> None:
    """Read the files of the page once; no other name is ever looked up on disk."""
    pages = resources.files("selhn.serve").joinpath("page")
    charts = resources.files("selhn.report").joinpath("chart")
    for file in (*pages.iterdir(), *charts.iterdir()):
        content = file.read_bytes()
        kind = KINDS[file.name.rpartition(".")[2]]
        tag = sha256(content).hexdigest()[:16]
        page = partial(tagged, content=content, tag=tag, kind=kind, headers={"Cache-Control": "no-cache"})
        path = next((path for path, name in PAGES.items() if name == file.name), f"/{file.name}")
        app.router.add_route(path, page, include_in_schema=False)
