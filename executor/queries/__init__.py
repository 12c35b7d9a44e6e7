"""The reading side: what people and programs may see, read and never written.

In: ids, filters, cursors. Out: the schemas that the HTTP API shows, each page from one snapshot of the rows.
`reader` runs the queries: those of `statements` (lists, filters) and those of `executor.sql`.
"""

from turnstile.executor.queries.read_limiter import ReadLimiter
from turnstile.executor.queries.reader import LogPage, LogPosition, Match, Matches, Reader, WorkerStart
from turnstile.executor.queries.schemas import (
    ActionChangeEntry,
    ActionQueuePage,
    ExecutionDetail,
    ExecutionRecord,
    LogEntry,
    QueueStats,
    StoredAction,
    WorkerDetail,
    WorkerState,
)
from turnstile.executor.queries.statements import ExecutionFilter
from turnstile.executor.queries.waiting_reason import Health

__all__ = [
    "ActionChangeEntry",
    "ActionQueuePage",
    "ExecutionDetail",
    "ExecutionFilter",
    "ExecutionRecord",
    "Health",
    "LogEntry",
    "LogPage",
    "LogPosition",
    "Match",
    "Matches",
    "QueueStats",
    "ReadLimiter",
    "Reader",
    "StoredAction",
    "WorkerDetail",
    "WorkerStart",
    "WorkerState",
]
