"""The routes for training runs."""

from typing import Annotated

from fastapi import APIRouter, Query

from selhn.base.errors import NotFound
from selhn.serve.service import Service
from selhn.serve.watched_runs import RunLog, RunMessage, VerdictMessage, WatchedRuns


def run_routes(router: APIRouter, service: Service) -> None:
    """Runs, their logs, and what is wrong with them."""

    def shown() -> WatchedRuns:
        if service.runs is None:
            raise NotFound("no runs are shown here: start the service with --runs DIR")
        return service.runs

    @router.get("/runs", tags=["runs"])
    async def runs() -> list[RunMessage]:
        """All runs, those written to last first."""
        return await service.read(shown().all)

    @router.get("/runs/log", tags=["runs"])
    async def log(run: str, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> RunLog:
        """The log of a run from a byte on; ask again with the `after` of the answer."""
        return await service.read(shown().read, run, after)

    @router.get("/runs/verdict", tags=["runs"])
    async def verdict(run: str) -> VerdictMessage:
        """Whether a run is healthy, stalled, collapsing, diverging, at chance or overfitting, and what helps."""
        return await service.read(shown().verdict, run)
