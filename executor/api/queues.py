"""`GET /queues`: all queues, sorted, searched and in pages, from the dashboard's board in memory."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field

from turnstile.common.domain.errors import Code
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_of, ticket_of
from turnstile.executor.api.problems import documented
from turnstile.executor.dashboard import Live, QueueOrder
from turnstile.executor.dashboard.board import Board
from turnstile.executor.dashboard.events import QueueShape, line_shape
from turnstile.executor.dashboard.lines import Line

_CURSOR = "queues"


class SeenQueueShape(QueueShape):
    """A queue with its last minutes."""

    depths: list[int | None] = Field(
        description="Its length at the end of each of the last 60 spans of 5 s, oldest first; null: not seen."
    )


class QueuePage(Page[SeenQueueShape]):
    """Some of the queues, as they were at one instant."""

    total: int = Field(description="Queues that are meant, on all pages.")
    truncated: bool = Field(description="There are more queues than are looked at: these are the busiest.")
    read_at: AwareDatetime


class QueueListing(Paging):
    """Which queues to list."""

    search: FilterText | None = Field(default=None, description="Part of an action's name or of a key.")
    sort: QueueOrder = Field(default=QueueOrder.NAME)
    action_ref: FilterText | None = Field(default=None, description="Only the queues of this action.")
    concurrency_key: FilterText | None = Field(default=None, description="Only the queues of this key.")


def queue_routes(live: Live) -> APIRouter:
    """Return the route of queues."""
    routes = APIRouter(prefix="/queues", tags=["queues"])

    @routes.get(
        "",
        summary="List queues: one for an action, or for an action and a concurrency key",
        description="Read once a second for all who look: it costs no query of its own, may be a second old, "
        "and queues move between two pages. Rates and lengths go back to when somebody began to look.",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_queues(asked: Annotated[QueueListing, Query()]) -> QueuePage:
        board = await live.board()
        lines = board.sorted(asked.sort, asked.search or "")
        if asked.action_ref or asked.concurrency_key:
            lines = [line for line in lines if _is_meant(line, asked)]
        start = ticket_of(_CURSOR, asked.cursor) or 0
        end = start + asked.limit
        assert board.read_at is not None
        return QueuePage(
            items=[_shown(board, line) for line in lines[start:end]],
            next_cursor=cursor_of(_CURSOR, end) if end < len(lines) else None,
            total=len(lines),
            truncated=board.truncated,
            read_at=board.read_at,
        )

    return routes


def _is_meant(line: Line, asked: QueueListing) -> bool:
    ref, key = line.name
    return asked.action_ref in (None, ref) and asked.concurrency_key in (None, key)


def _shown(board: Board, line: Line) -> SeenQueueShape:
    return SeenQueueShape(**line_shape(board, line).model_dump(), depths=board.depths(line.name))
