"""What people and programs may see: executions, lines, actions and workers, read and never written.

In: ids, filters, cursors. Out: the shapes that the HTTP API shows, each page from one snapshot of the rows,
so that its numbers agree with each other (P10: whatever waits can say why). Next: `reader` asks the queries
of `executor.sql`; `shapes` and `execution_shapes` say what comes out; `waiting_reason` decides why.
"""

from turnstile.executor.reading.execution_shapes import ExecutionRecord, ExecutionShape
from turnstile.executor.reading.filters import ExecutionFilter
from turnstile.executor.reading.matches import Match, Matches
from turnstile.executor.reading.reader import LineStart, Reader, WorkerStart
from turnstile.executor.reading.shapes import (
    ActionChangeShape,
    ActionShape,
    LineShape,
    QueueStats,
    WorkerShape,
    WorkerState,
)

__all__ = [
    "ActionChangeShape",
    "ActionShape",
    "ExecutionFilter",
    "ExecutionRecord",
    "ExecutionShape",
    "LineShape",
    "LineStart",
    "Match",
    "Matches",
    "QueueStats",
    "Reader",
    "WorkerShape",
    "WorkerStart",
    "WorkerState",
]
