"""Says in words how an execution stands: rows for lists, fields for one (P10).

Pure: JSON of the API in, text out.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.connection import Json
from turnstile.executor.cli.output import compact, instant
from turnstile.executor.cli.waiting_sentence import waiting_sentence

LIST_HEADINGS: Final = ("ID", "ACTION", "KEY", "STATUS", "ATTEMPT", "CREATED", "TOOK", "ERROR")
ATTEMPT_HEADINGS: Final = ("ATTEMPT", "OUTCOME", "WORKER", "STARTED", "TOOK", "ERROR")


def list_row(execution: Json) -> Sequence[object]:
    """Return an execution as a row under `LIST_HEADINGS`."""
    return (
        execution["id"],
        execution["action_ref"],
        execution["concurrency_key"],
        execution["status"],
        execution["attempt"],
        instant(execution["created_at"]),
        took(execution["started_at"], execution["completed_at"]),
        error_text(execution["error"]),
    )


def fields(execution: Json) -> Iterator[tuple[str, object]]:
    """Yield what there is to say about one execution."""
    for name in ("id", "action_ref", "status"):
        yield name, execution[name]
    yield "waits for", waiting_sentence(execution)
    for name in ("concurrency_key", "idempotency_key", "attempt", "worker_id"):
        yield name, execution[name]
    yield "parameters", compact(execution["parameters"])
    if execution["metadata"]:
        yield "metadata", compact(execution["metadata"])
    if execution["status"] == "completed":
        yield "result", compact(execution["result"])
    yield "error", error_text(execution["error"])
    for name in (
        "created_at",
        "run_at",
        "queued_at",
        "scheduled_at",
        "started_at",
        "completed_at",
        "expires_at",
    ):
        yield name, instant(execution[name])
    yield "took", took(execution["started_at"], execution["completed_at"])


def attempt_row(attempt: Json) -> Sequence[object]:
    """Return an attempt as a row under `ATTEMPT_HEADINGS`."""
    return (
        attempt["attempt"],
        attempt["outcome"] or "running",
        attempt["worker_id"],
        instant(attempt["started_at"]),
        took(attempt["started_at"], attempt["ended_at"]),
        error_text(attempt["error"]),
    )


def error_text(error: Json | None) -> str:
    """Return an error on one line."""
    return "" if error is None else f"{error['type']}: {error['message']}"


def took(started_at: str | None, ended_at: str | None) -> str:
    """Return how long it ran; empty while that is not known."""
    if started_at is None or ended_at is None:
        return ""
    run = datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)
    return format_duration(max(run.total_seconds(), 0.0))
