"""`GET /queues`: all queues, sorted, searched and in pages, from the dashboard's state in memory."""

from typing import Annotated

from fastapi import Query
from pydantic import AwareDatetime, Field

from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_id, next_cursor
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes
from turnstile.executor.api_tokens import is_in_scope
from turnstile.executor.dashboard.events import QueueSummary, queue_summary
from turnstile.executor.dashboard.state import DashboardState, Queue, QueueOrder

_CURSOR = "queues"


class QueueWithHistory(QueueSummary):
    """A queue with its length over the last minutes."""

    depths: list[int | None] = Field(
        description="Its length at the end of each of the last 60 spans of 5 s, oldest first; null: unknown."
    )


class QueuePage(Page[QueueWithHistory]):
    """A page of the queues, as they were at one instant."""

    total: int = Field(description="Matching queues, on all pages.")
    truncated: bool = Field(description="There are more queues than are read: these are the busiest.")
    read_at: AwareDatetime
    degraded: dict[str, str] = Field(
        description="What does not work at this executor, and why, by server or pool.",
        examples=[{"pool gpu": "queue worker.gpu: inequivalent arg 'x-queue-type'"}],
    )


class QueueListing(Paging):
    """Which queues to list, and in which order."""

    search: FilterText | None = Field(default=None, description="Part of an action's name or of a key.")
    sort: QueueOrder = Field(default=QueueOrder.NAME)
    action_ref: FilterText | None = Field(default=None, description="Only the queues of this action.")
    concurrency_key: FilterText | None = Field(default=None, description="Only the queues of this key.")


routes = ApiRoutes(prefix="/queues", tag="queues")


@routes.get(
    "",
    summary="List queues: one for an action, or for an action and a concurrency key",
    description="Read once a second for all clients: a request costs no query of its own, may be a "
    "second old, and queues may move between two pages. Rates and lengths start with the first request.",
)
async def get_queues(parts: Parts, query: Annotated[QueueListing, Query()], scope: CallerScope) -> QueuePage:
    state = await parts.live.state()
    queues = state.sorted(query.sort, query.search or "")
    if query.action_ref or query.concurrency_key:
        queues = [queue for queue in queues if _matches(queue, query)]
    if scope is not None:
        queues = [queue for queue in queues if is_in_scope(queue.name[0], scope)]
    start = cursor_id(_CURSOR, query.cursor, first=0)
    end = start + query.limit
    assert state.read_at is not None
    return QueuePage(
        items=[_shown(state, queue) for queue in queues[start:end]],
        next_cursor=next_cursor(_CURSOR, end if end < len(queues) else None),
        total=len(queues),
        truncated=state.truncated,
        read_at=state.read_at,
        degraded=dict(parts.live.degraded()),
    )


def _matches(queue: Queue, query: QueueListing) -> bool:
    ref, key = queue.name
    return query.action_ref in (None, ref) and query.concurrency_key in (None, key)


def _shown(state: DashboardState, queue: Queue) -> QueueWithHistory:
    return QueueWithHistory(**dict(queue_summary(state, queue)), depths=state.depths(queue.name))
