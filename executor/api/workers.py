"""The routes of workers: list them, show one, drain one, and tell one for how long it is not reclaimed."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.fields import check_instant
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.definition_routes import decided
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_of, cursor_parts, invalid_cursor
from turnstile.executor.api.parts import ApiParts, Parts
from turnstile.executor.api.problems import ApiRoutes, Refused, documented
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.queries.schemas import NoReclaim, WorkerDetail, WorkerPage, WorkerState
from turnstile.executor.queries.worker_reader import WorkerStart

_CURSOR: Final = "workers"
_SPARED_SECONDS: Final = 1.5
"""How long a worker waits for the promise: it asks again after 2 s."""
WorkerPath = Annotated[
    str,
    Path(max_length=255, description="The worker's id.", examples=["5f2b8c1e-7f0a-4a53-9d55-2f3f8f5f6a10"]),
]
WorkerNamePath = Annotated[
    str,
    Path(
        max_length=255,
        description="The worker's id, or its name: of several the one that runs, or ran last.",
        examples=["worker-1"],
    ),
]


class WorkerListing(Paging):
    """Which workers to list."""

    state: list[WorkerState] | None = Field(default=None, description="Any of these; repeat it for several.")
    action_ref: FilterText | None = Field(default=None, description="Only those that serve this action.")


routes = ApiRoutes(prefix="/workers", tag="workers")


@routes.get("", summary="List workers, the newest first")
async def get_workers(parts: Parts, query: Annotated[WorkerListing, Query()]) -> Page[WorkerDetail]:
    items, rest = await parts.workers.workers(
        states=query.state or None,
        start=_start(query.cursor),
        limit=query.limit,
        action_ref=query.action_ref,
    )
    return Page(items=items, next_cursor=None if rest is None else _cursor(rest))


@routes.get(
    "/{worker}",
    summary="Show a worker: its running attempts, last failures, and notes of its start",
    responses=documented(Code.NOT_FOUND),
)
async def get_worker(parts: Parts, worker: WorkerNamePath) -> WorkerPage:
    # No id or name contains this character, and the database accepts it in no text.
    found = None if "\0" in worker else await parts.workers.worker_page(worker)
    if found is None:
        raise _no_such(worker)
    return found


@routes.post(
    "/{worker_id}/drain",
    summary="Drain a worker: it takes nothing more, and finishes or returns what it runs",
    description="Takes effect with its next heartbeat. What it cannot finish within its `drain_timeout` "
    "returns to the head of its queue. Its process then idles until it is stopped.",
    status_code=202,
    responses=documented(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
)
async def post_drain(parts: Parts, worker_id: WorkerPath, caller: CurrentCaller) -> WorkerDetail:
    await _existing(parts, worker_id)
    command = DefinitionCommand(
        kind="worker", name=worker_id, definition={"is_draining": True}, changed_by=caller._asdict()
    )
    try:
        await decided(parts.inbox, command)
    except Refusal as refusal:
        if refusal.code is not Code.NOT_FOUND:
            raise
        worker = await _existing(parts, worker_id)
        detail = f"worker_id: {worker_id} is {worker.state}; only a live worker can be drained"
        raise Refused(Code.ALREADY_TERMINAL, detail, id=worker_id, worker_state=worker.state) from None
    return await _existing(parts, worker_id)


@routes.post(
    "/{worker_id}/acknowledge",
    summary="Acknowledge the loss of a worker: it needs no more attention",
    description="The dashboard and `GET /workers` show it as acknowledged, and count it no more.",
    responses=documented(Code.NOT_FOUND, Code.NOT_TERMINAL),
)
async def post_acknowledge(parts: Parts, worker_id: WorkerPath, caller: CurrentCaller) -> WorkerDetail:
    worker = await _existing(parts, worker_id)
    if worker.acknowledged_at is None:
        async with answer_deadline():
            await parts.workers.acknowledge(worker_id, caller)
        worker = await _existing(parts, worker_id)
    if worker.acknowledged_at is None:
        detail = f"worker_id: {worker_id} is {worker.state}; only a lost worker can be acknowledged"
        raise Refused(Code.NOT_TERMINAL, detail, id=worker_id, worker_state=worker.state)
    return worker


@routes.post(
    "/{worker_id}/no-reclaim",
    summary="Ask for how long nothing that a worker runs is reclaimed",
    description="For workers that cannot reach the broker. The promise counts from the sending of the "
    "request; it is 0 while the leader reaches the broker, and for unknown workers.",
)
async def post_no_reclaim(parts: Parts, worker_id: WorkerPath) -> NoReclaim:
    if "\0" in worker_id:
        return NoReclaim(seconds=0.0)
    command = DefinitionCommand(kind="worker", name=worker_id, definition={"no_reclaim": True})
    (found,) = await parts.inbox.decide([command], seconds=_SPARED_SECONDS)
    return NoReclaim(seconds=found["seconds"])


async def _existing(parts: ApiParts, worker_id: str) -> WorkerDetail:
    # No id contains this character, and the database accepts it in no text.
    worker = None if "\0" in worker_id else await parts.workers.worker(worker_id)
    if worker is None:
        raise _no_such(worker_id)
    return worker


def _no_such(worker: str) -> Refusal:
    return Refusal(
        Code.NOT_FOUND, f"worker_id: there is no worker {worker[:80]!r}; GET /api/v1/workers lists them"
    )


def _cursor(start: WorkerStart) -> str:
    return cursor_of(_CURSOR, start.started_at.isoformat(), start.id)


def _start(cursor: str | None) -> WorkerStart | None:
    if cursor is None:
        return None
    started_at, worker_id = cursor_parts(_CURSOR, cursor, count=2)
    try:
        instant = check_instant(datetime.fromisoformat(started_at))
    except ValueError:
        raise invalid_cursor() from None
    if instant.tzinfo is None:
        raise invalid_cursor()
    return WorkerStart(instant, worker_id)
