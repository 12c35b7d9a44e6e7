"""`GET /history`: what executions did over time, from the counts by action and minute."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from turnstile.common.schemas import History, HistoryWindow
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.bodies import StrictModel
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes


class HistoryParameters(StrictModel):
    """What to add up."""

    window: HistoryWindow = Field(
        default="1h", description="In points of a minute, of ten minutes, or of an hour."
    )
    action_ref: FilterText | None = Field(
        default=None, description="Only this action, whether it still exists or not."
    )


routes = ApiRoutes(tag="operation")


@routes.get(
    "/history",
    summary="Show what executions did over time: throughput, failures, waiting and run times, slots in use",
    description="Counted by action and minute, over all concurrency keys, and kept for "
    "`TURNSTILE_RETENTION_HISTORY`. The window ends with the last whole minute. A leader that is killed "
    "loses what it counted since the minute began.",
)
async def get_history(
    parts: Parts, query: Annotated[HistoryParameters, Query()], scope: CallerScope
) -> History:
    return await parts.history.history(query.window, action_ref=query.action_ref, scope=scope)
