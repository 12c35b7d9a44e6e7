"""The route of workers: who is there, who left, who was lost."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from common.domain.errors import Code
from executor.api.paging import Page, Paging, cursor_of, foreign_cursor, places_of
from executor.api.problems import documented
from executor.reading import Reader, WorkerShape, WorkerStart, WorkerState

_CURSOR = "workers"


class WorkerListing(Paging):
    """Which workers to list."""

    state: list[WorkerState] | None = Field(default=None, description="Any of these; repeat it for several.")


def worker_routes(reader: Reader) -> APIRouter:
    """Return the route of workers."""
    routes = APIRouter(prefix="/workers", tags=["workers"])

    @routes.get("", summary="List workers, the newest first", responses=documented(Code.UNKNOWN_FIELD))
    async def get_workers(asked: Annotated[WorkerListing, Query()]) -> Page[WorkerShape]:
        items, rest = await reader.workers(
            states=asked.state or None, start=_start(asked.cursor), limit=asked.limit
        )
        return Page(items=items, next_cursor=None if rest is None else _cursor(rest))

    return routes


def _cursor(start: WorkerStart) -> str:
    return cursor_of(_CURSOR, start.started_at.isoformat(), start.id)


def _start(cursor: str | None) -> WorkerStart | None:
    if cursor is None:
        return None
    started_at, worker_id = places_of(_CURSOR, cursor, count=2)
    try:
        instant = datetime.fromisoformat(started_at)
    except ValueError:
        raise foreign_cursor() from None
    if instant.tzinfo is None:
        raise foreign_cursor()
    return WorkerStart(instant, worker_id)
