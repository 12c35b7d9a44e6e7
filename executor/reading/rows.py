"""Turns rows of the reading queries into shapes; documents come from the database as JSON text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from pydantic_core import from_json

from common.action_definition import RetryDefinition
from common.domain.states import Status
from executor.reading.execution_shapes import AttemptShape, ErrorShape, ExecutionRecord, ExecutionShape
from executor.reading.shapes import (
    ActionShape,
    HolderShape,
    KeyStats,
    LineShape,
    QueueStats,
    WaitingCounts,
    WaitingShape,
    WorkerShape,
)
from executor.reading.waiting_reason import Facts, waiting_on

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record


def execution_record(row: "Row") -> ExecutionRecord:
    """Return a row of `executions`."""
    return ExecutionRecord(**_recorded(row))


def execution_shape(row: "Row") -> ExecutionShape:
    """Return a row of `execution`."""
    facts = Facts(
        status=Status(row["status"]),
        run_at=row["run_at"],
        position=row["position"],
        paused=row["paused"],
        max_concurrent=row["max_concurrent"],
        active_count=row["active_count"],
        holders=row["holder_ids"] or (),
        pool=row["pool"],
        served=row["served"],
    )
    return ExecutionShape(
        **_recorded(row),
        position=row["position"],
        waiting_on=waiting_on(facts),
        attempts=[AttemptShape.model_validate(attempt) for attempt in _document(row["attempts"]) or ()],
    )


def queue_stats(row: "Row") -> QueueStats:
    """Return the row of `queue_stats`."""
    waiting = WaitingCounts(
        limit=row["on_limit"], paused=row["on_pause"], no_worker=row["on_worker"], rate=row["on_rate"]
    )
    return QueueStats(
        **_same_names(row, QueueStats, besides={"waiting", "by_key"}),
        waiting=waiting,
        by_key=[KeyStats.model_validate(key) for key in _document(row["by_key"]) or ()],
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
        entrypoint=_document(row["entrypoint"]),
        retry=retry,
        timeout=row["timeout_seconds"],
        ttl=row["ttl_seconds"],
        keep_for=row["keep_for_seconds"],
    )


def worker_shape(row: "Row") -> WorkerShape:
    """Return a row of `workers`."""
    return WorkerShape(**row)


def _recorded(row: "Row") -> dict[str, Any]:
    error = None
    if row["error_type"] is not None:
        error = ErrorShape(type=row["error_type"], message=row["error_message"] or "")
    documents = {"parameters", "result", "metadata"}
    return {
        **_same_names(row, ExecutionRecord, besides={*documents, "error"}),
        **{name: _document(row[name]) for name in documents},
        "error": error,
    }


def _same_names(
    row: "Row", shape: type[ExecutionRecord | QueueStats | ActionShape], *, besides: set[str]
) -> dict[str, Any]:
    return {name: row[name] for name in shape.model_fields if name not in besides}


def _document(text: str | None) -> Any:
    return None if text is None else from_json(text)
