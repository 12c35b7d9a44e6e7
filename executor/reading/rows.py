"""Turns rows of the reading queries into shapes; documents come from the database as JSON text.

One that nobody could read is left out: it must not take the page with it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from turnstile.common.action_definition import RetryDefinition
from turnstile.common.documents import readable
from turnstile.common.domain.states import Status
from turnstile.executor.reading.estimate import Pace, estimated_start
from turnstile.executor.reading.estimate_runs import Grant
from turnstile.executor.reading.execution_shapes import (
    AttemptShape,
    ErrorShape,
    ExecutionRecord,
    ExecutionShape,
)
from turnstile.executor.reading.matches import Match, Matches
from turnstile.executor.reading.shapes import (
    ActionChangeShape,
    ActionShape,
    HolderShape,
    KeyStats,
    LineShape,
    QueueStats,
    WaitingCounts,
    WaitingShape,
    WorkerShape,
)
from turnstile.executor.reading.waiting_reason import Facts, Trouble, waiting_on

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record


def execution_record(row: "Row") -> ExecutionRecord:
    """Return a row of `executions`."""
    return ExecutionRecord(**_recorded(row))


def waiting_facts(row: "Row", trouble: Trouble | None) -> Facts:
    """Return what a row of `execution` says about why it waits."""
    return Facts(
        status=Status(row["status"]),
        run_at=row["run_at"],
        scheduled_at=row["scheduled_at"],
        position=row["position"],
        paused=row["paused"],
        max_concurrent=row["max_concurrent"],
        active_count=row["active_count"],
        holders=row["holder_ids"] or (),
        pool=row["pool"],
        served=row["served"],
        trouble=trouble,
    )


def pace(row: "Row") -> Pace:
    """Return a row of `queue_pace`."""
    grants: dict[bool, list[Grant]] = {True: [], False: []}
    for own, queued_ago, granted_ago, claimed_after, lasted in readable(row["grants"]) or ():
        grant = Grant(
            queued_ago=queued_ago,
            granted_ago=max(granted_ago, 0.0),
            claimed_after=claimed_after,
            lasted=lasted,
        )
        grants[own].append(grant)
    return Pace(
        looked_at=row["looked_at"],
        own=grants[True],
        others=grants[False],
        ages=row["ages"] or (),
        ahead=row["ahead"],
    )


def execution_shape(row: "Row", facts: Facts, pace: Pace | None) -> ExecutionShape:
    """Return a row of `execution`; without a pace no start is expected."""
    return ExecutionShape(
        **_recorded(row),
        position=row["position"],
        queue_length=None if row["position"] is None else row["depth"],
        waiting_on=waiting_on(facts),
        estimated_start=None if pace is None else estimated_start(facts, pace),
        attempts=[AttemptShape.model_validate(attempt) for attempt in readable(row["attempts"]) or ()],
    )


def queue_stats(row: "Row") -> QueueStats:
    """Return the row of `queue_stats`."""
    waiting = WaitingCounts(
        limit=row["on_limit"], paused=row["on_pause"], no_worker=row["on_worker"], rate=row["on_rate"]
    )
    return QueueStats(
        **_same_names(row, QueueStats, besides={"waiting", "by_key"}),
        waiting=waiting,
        by_key=[KeyStats.model_validate(key) for key in readable(row["by_key"]) or ()],
    )


def line_shape(ref: str, waiting: "Sequence[Row]", holders: "Sequence[Row]") -> LineShape:
    """Return rows of `queue_line` and `queue_holders`."""
    return LineShape(
        action_ref=ref,
        items=[WaitingShape(**row) for row in waiting],
        holders=[HolderShape(**row) for row in holders],
        next_cursor=None,
    )


def action_shape(row: "Row") -> ActionShape:
    """Return a row of `actions`."""
    retry = RetryDefinition(
        max_attempts=row["retry_max_attempts"],
        delay=row["retry_delay_seconds"],
        factor=row["retry_factor"],
        max_delay=row["retry_max_delay_seconds"],
        jitter=row["retry_jitter"],
    )
    return ActionShape(
        **_same_names(row, ActionShape, besides={"entrypoint", "retry", "timeout", "ttl", "keep_for"}),
        entrypoint=readable(row["entrypoint"]),
        retry=retry,
        timeout=row["timeout_seconds"],
        ttl=row["ttl_seconds"],
        keep_for=row["keep_for_seconds"],
    )


def matches(found: "Sequence[Row]") -> Matches:
    """Return rows of `live_matches` or `ended_matches`."""
    items = [Match(row["id"], Status(row["status"])) for row in found if row["id"] is not None]
    return Matches(items=items, next_id=found[0]["next_id"])


def action_change(row: "Row") -> ActionChangeShape:
    """Return a row of `action_changes`."""
    return ActionChangeShape(**{**row, "old": readable(row["old"]), "new": readable(row["new"])})


def worker_shape(row: "Row") -> WorkerShape:
    """Return a row of `workers`."""
    return WorkerShape(**row)


def _recorded(row: "Row") -> dict[str, Any]:
    error = None
    if row["error_type"] is not None:
        error = ErrorShape(type=row["error_type"], message=row["error_message"] or "")
    documents: dict[str, Any] = {"parameters": {}, "result": None, "metadata": {}}
    return {
        **_same_names(row, ExecutionRecord, besides={*documents, "error"}),
        **{name: readable(row[name], otherwise=left_out) for name, left_out in documents.items()},
        "error": error,
    }


def _same_names(
    row: "Row", shape: type[ExecutionRecord | QueueStats | ActionShape], *, besides: set[str]
) -> dict[str, Any]:
    return {name: row[name] for name in shape.model_fields if name not in besides}
