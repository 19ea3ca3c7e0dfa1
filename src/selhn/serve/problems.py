"""What a client is told when something goes wrong: {"error": "..."}, with a status for each kind of error."""

import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import ClientDisconnect

from selhn.base.errors import Damaged, Linked, Locked, MissingExtra, NotFound, Outdated, SelhnError

LOGGER = logging.getLogger("selhn.serve")
STATUSES = {
    SelhnError: 400,
    NotFound: 404,
    Locked: 409,
    Damaged: 500,
    Linked: 500,
    Outdated: 500,
    MissingExtra: 501,
}


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in {
        400: "The question cannot be answered.",
        401: "The token is missing or wrong.",
        403: "Writing is off, or a page of another origin asked.",
        404: "There is no such item, picture or run.",
        408: "The body came too slowly.",
        409: "Another process is writing the index.",
        413: "The body is too large.",
        415: "The body has a content type that is not supported.",
        421: "The Host header names another service.",
        422: "A parameter is not valid.",
        500: "The index is damaged, or there is a bug; the log has the details.",
        501: "The service lacks an optional package.",
        503: "Too many requests, or no access to storage: try again.",
    }.items()
}


def add_problems(app: FastAPI) -> None:
    """Map each kind of error to its answer; middleware that is added later sees all of them."""
    # The server logs the traceback of a bug, since the exception is raised again after this answer.
    bug = "this is a bug in selhn: the traceback is in the log of the service"
    gone = "the client disconnected during its request"
    app.add_middleware(ServerErrorMiddleware, handler=lambda request, wrong: problem(500, bug))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, lambda request, wrong: problem(400, gone))
    app.add_exception_handler(SelhnError, _wrong)
    app.add_exception_handler(OSError, _failed)


def problem(status: int, reason: str, headers: Any = None) -> JSONResponse:
    """The answer that gives a reason; as every answer of Starlette it is an ASGI application."""
    return JSONResponse({"error": reason}, status, headers)


def _invalid(request: Request, wrong: Any) -> Response:
    told = []
    for one in wrong.errors()[:3]:
        place = ".".join(map(str, one["loc"][1:])) if one["type"] != "json_invalid" else ""
        told.append(f"{place or one['loc'][0]}: {one['msg']}")
    return problem(422, "; ".join(told).encode("utf-8", "replace").decode())


def _refused(request: Request, wrong: Any) -> Response:
    return problem(wrong.status_code, str(wrong.detail), wrong.headers)


def _wrong(request: Request, wrong: Any) -> Response:
    status = next(STATUSES[kind] for kind in type(wrong).__mro__ if kind in STATUSES)
    if status >= 500:
        LOGGER.error("%s: %s", request.url.path, wrong)
    return problem(status, str(wrong))


def _failed(request: Request, wrong: Any) -> Response:
    LOGGER.error("%s: %s", request.url.path, wrong)
    if isinstance(wrong, FileNotFoundError):  # of a picture or a run, after it was found
        return problem(404, "the file was just removed")
    if isinstance(
        wrong, ConnectionError
    ):  # of a server of vectors, whose message says what to do and names no file
        return problem(503, str(wrong), {"Retry-After": "5"})
    why = wrong.strerror or getattr(wrong.__cause__, "strerror", None) or "unknown"
    return problem(503, f"cannot access storage ({why}): try again later")
