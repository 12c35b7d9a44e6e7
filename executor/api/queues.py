"""`GET /queues`: all queues, sorted, searched and in pages, from the dashboard's state in memory."""

from collections import Counter
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AwareDatetime, Field

from turnstile.common.schemas import WaitingFor
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_id, next_cursor
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes
from turnstile.executor.api_tokens import is_in_scope
from turnstile.executor.dashboard.events import QueueSummary, queue_summary
from turnstile.executor.dashboard.state import DashboardState, Group, Queue, QueueOrder
from turnstile.executor.queries.queue_reader import waiting_for
from turnstile.executor.questions.explain import Bound, Bounds, counts_by_bound

_CURSOR = "queues"


class QueueWithHistory(QueueSummary):
    """A queue, or all of an action, with its length over the last minutes."""

    why: tuple[WaitingFor, ...] = Field(
        description="What waits, and for what in the end, as in `queue-stats`; what most wait for first. "
        "Empty while no leader answers."
    )
    keys: int | None = Field(
        description="Of an action with keys: how many have a queue. Null: this is one queue."
    )
    idle_keys: int | None = Field(description="Those of them where nothing waits or holds a slot.")

    depths: list[int | None] = Field(
        description="Its length at the end of each of the last 60 spans of 5 s, oldest first; null: unknown."
    )


class QueuePage(Page[QueueWithHistory]):
    """A page of the queues, as they were at one instant."""

    total: int = Field(description="Matching queues, or actions, on all pages.")
    idle: int = Field(description="Those of them that are idle, also if they are not listed.")
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
    group: Literal["action"] | None = Field(
        default=None, description="action: one item for each action, its queues added up."
    )
    idle: bool | None = Field(
        default=None,
        description="true: only those where nothing waits, holds a slot or failed lately; false: the others.",
    )
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
    queues = state.sorted(query.sort, query.search or "", by_action=query.group is not None)
    if query.action_ref or query.concurrency_key:
        queues = [queue for queue in queues if _matches(queue, query)]
    if scope is not None:
        queues = [queue for queue in queues if is_in_scope(queue.name[0], scope)]
    idle = [queue for queue in queues if state.is_idle(queue)]
    if query.idle is not None:
        queues = idle if query.idle else [queue for queue in queues if not state.is_idle(queue)]
    start = cursor_id(_CURSOR, query.cursor, first=0)
    end = start + query.limit
    listed = queues[start:end]
    waiting = dict.fromkeys(queue.name.action_ref for queue in listed if queue.depth)
    bounds = await parts.queues.bounds(list(waiting))
    assert state.read_at is not None
    return QueuePage(
        items=[_shown(state, queue, bounds.get(queue.name.action_ref)) for queue in listed],
        next_cursor=next_cursor(_CURSOR, end if end < len(queues) else None),
        total=len(queues),
        idle=len(idle),
        truncated=state.truncated,
        read_at=state.read_at,
        degraded=dict(parts.live.degraded()),
    )


def _matches(queue: Queue, query: QueueListing) -> bool:
    ref, key = queue.name
    return query.action_ref in (None, ref) and query.concurrency_key in (None, key)


def _shown(state: DashboardState, queue: Queue, bounds: Bounds | None) -> QueueWithHistory:
    group, why = queue if isinstance(queue, Group) else None, Counter[Bound]()
    if bounds is not None and queue.depth:
        length = queue.depth - queue.held_waiting
        key = None if group else queue.name.concurrency_key or ""
        why = counts_by_bound(bounds, length, queue.startable, queue.limited, key)
    return QueueWithHistory(
        **dict(queue_summary(state, queue)), depths=state.depths(queue),
        why=waiting_for(why.most_common()),
        keys=None if group is None else group.keys,
        idle_keys=None if group is None else group.idle_keys,
    )  # fmt: skip
