"""The routes of workers: who is there, who left, who was lost; and have one leave."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.instant import check_instant
from turnstile.executor.api.paging import Page, Paging, cursor_of, foreign_cursor, places_of
from turnstile.executor.api.problems import answer, documented, problem
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.reading import Reader, WorkerShape, WorkerStart, WorkerState

_CURSOR = "workers"
WorkerPath = Annotated[
    str,
    Path(max_length=255, description="The worker's id.", examples=["5f2b8c1e-7f0a-4a53-9d55-2f3f8f5f6a10"]),
]


class WorkerListing(Paging):
    """Which workers to list."""

    state: list[WorkerState] | None = Field(default=None, description="Any of these; repeat it for several.")


def worker_routes(services: ApiServices, reader: Reader) -> APIRouter:
    """Return the routes of workers."""
    routes = APIRouter(prefix="/workers", tags=["workers"])

    @routes.get("", summary="List workers, the newest first", responses=documented(Code.UNKNOWN_FIELD))
    async def get_workers(asked: Annotated[WorkerListing, Query()]) -> Page[WorkerShape]:
        items, rest = await reader.workers(
            states=asked.state or None, start=_start(asked.cursor), limit=asked.limit
        )
        return Page(items=items, next_cursor=None if rest is None else _cursor(rest))

    @routes.post(
        "/{worker_id}/drain",
        summary="Have it take nothing new, end or give back what it runs, and leave",
        description="It hears of it with its next heartbeat. What it cannot end in its `drain_timeout` goes "
        "back to the head of its line. Its process idles then, until it is stopped.",
        status_code=202,
        responses=documented(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
        response_model=WorkerShape,
    )
    async def post_drain(worker_id: WorkerPath) -> Any:
        async with answer_deadline():
            # No id has this character, and the database takes it in no text.
            possible = "\0" not in worker_id
            drains = possible and await services.drain_worker(worker_id)
            worker = await reader.worker(worker_id) if possible else None
        if worker is None:
            raise Refusal(
                Code.NOT_FOUND,
                f"worker_id: there is no worker {worker_id[:80]!r}; GET /api/v1/workers has them",
            )
        if not drains:
            left = f"worker_id: {worker_id} is {worker.state}; only one that is there can drain"
            return answer(problem(Code.ALREADY_TERMINAL, left, id=worker_id, worker_state=worker.state))
        return worker

    return routes


def _cursor(start: WorkerStart) -> str:
    return cursor_of(_CURSOR, start.started_at.isoformat(), start.id)


def _start(cursor: str | None) -> WorkerStart | None:
    if cursor is None:
        return None
    started_at, worker_id = places_of(_CURSOR, cursor, count=2)
    try:
        instant = check_instant(datetime.fromisoformat(started_at))
    except ValueError:
        raise foreign_cursor() from None
    if instant.tzinfo is None:
        raise foreign_cursor()
    return WorkerStart(instant, worker_id)
