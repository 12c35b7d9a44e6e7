"""Decides whether a running execution has been asked to stop, since when, and when it is ended by force.

Pure. A cancel request and the end of the timeout both ask; the first of them counts. Its worker kills it
after its grace period; if it still runs some time later, the executor ends it without the worker.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from turnstile.executor.queries.schemas import Stopping

if TYPE_CHECKING:
    import asyncpg

    Row: TypeAlias = asyncpg.Record | Mapping[str, Any]


def stopping_of(row: "Row", enforced_seconds: float) -> Stopping | None:
    """Return how a running execution is being stopped; None: it has not been asked to, or does not run.

    `row` has `started_at`, `completed_at`, `timeout_seconds`, `cancel_requested_at`, `cancel_reason`,
    `stop_grace_seconds` of its worker (None: unknown) and the time of reading, `read_at`. After
    `enforced_seconds` the executor ends it.
    """
    started_at, cancelled_at = row["started_at"], row["cancel_requested_at"]
    if started_at is None or row["completed_at"] is not None:
        return None
    timed_out_at = None
    if row["timeout_seconds"] is not None:
        timed_out_at = started_at + timedelta(seconds=row["timeout_seconds"])
        if timed_out_at > row["read_at"]:
            timed_out_at = None
    asked = [at for at in (cancelled_at, timed_out_at) if at is not None]
    if not asked:
        return None
    since, grace_seconds = min(asked), row["stop_grace_seconds"]
    seconds = enforced_seconds if grace_seconds is None else min(grace_seconds, enforced_seconds)
    return Stopping(
        reason="cancel" if since == cancelled_at else "timeout",
        since=since,
        kill_at=since + timedelta(seconds=seconds),
        cancel_reason=row["cancel_reason"],
    )
