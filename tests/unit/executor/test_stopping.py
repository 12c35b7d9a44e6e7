"""When a running execution counts as asked to stop, and when its worker kills it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.queries.waiting_reason import stopping_of

STARTED = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return STARTED + timedelta(seconds=seconds)


def row(**fields: Any) -> dict[str, Any]:
    running = {"started_at": STARTED, "completed_at": None, "timeout_seconds": None, "read_at": after(100)}
    asked = {"cancel_requested_at": None, "cancel_reason": None, "stop_grace_seconds": 5.0}
    return running | asked | fields


def test_the_first_request_counts() -> None:
    both = stopping_of(row(timeout_seconds=50.0, cancel_requested_at=after(60)), 30)
    assert both is not None
    assert (both.reason, both.since, both.kill_at) == ("timeout", after(50), after(55))
    cancelled = stopping_of(
        row(timeout_seconds=70.0, cancel_requested_at=after(60), cancel_reason="late"), 30
    )
    assert cancelled is not None
    assert (cancelled.reason, cancelled.since, cancelled.cancel_reason) == ("cancel", after(60), "late")


@pytest.mark.parametrize(("grace_seconds", "seconds"), [(5.0, 5), (480.0, 30), (None, 30)])
def test_the_executor_ends_what_its_worker_has_not_killed_by_then(
    grace_seconds: float | None, seconds: float
) -> None:
    shown = stopping_of(row(cancel_requested_at=after(60), stop_grace_seconds=grace_seconds), 30)
    assert shown is not None
    assert shown.kill_at == after(60 + seconds)
