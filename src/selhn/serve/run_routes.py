"""The routes that show training runs."""

from typing import Annotated

from fastapi import APIRouter, Query

from selhn.base.errors import NotFound
from selhn.serve.messages import RunLog, RunMessage, VerdictMessage
from selhn.serve.problems import PROBLEMS
from selhn.serve.service import Service
from selhn.serve.watched_runs import WatchedRuns


def run_routes(service: Service) -> APIRouter:
    """Which runs there are, their logs piece by piece, and the verdict."""
    router = APIRouter(prefix="/api/v1/runs", responses=PROBLEMS, tags=["runs"])

    @router.get("")
    async def runs() -> list[RunMessage]:
        """All runs, those written to last first."""
        return await service.read(_shown(service).all)

    @router.get("/log")
    async def log(run: str, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> RunLog:
        """The log of a run from a byte on; ask again with the `after` of the answer."""
        return await service.read(_shown(service).read, run, after)

    @router.get("/verdict")
    async def verdict(run: str) -> VerdictMessage:
        """Whether a run is healthy, stalled, collapsing, diverging or overfitting, and what helps."""
        return await service.read(_shown(service).verdict, run)

    return router


def _shown(service: Service) -> WatchedRuns:
    if service.runs is None:
        raise NotFound("no runs are shown here: start the service with --runs DIR")
    return service.runs
