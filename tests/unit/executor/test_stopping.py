"""When a running execution counts as asked to stop, and when its worker kills it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.queries.stopping import Run

STARTED = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return STARTED + timedelta(seconds=seconds)


def run(**fields: Any) -> Run:
    given: dict[str, Any] = {"started_at": STARTED, "stop_grace_seconds": 5.0, "read_at": after(100)} | fields
    return Run(**given)


def test_the_first_request_counts() -> None:
    both = run(timeout_seconds=50.0, cancel_requested_at=after(60)).stopping(30)
    assert both is not None
    assert (both.reason, both.since, both.kill_at) == ("timeout", after(50), after(55))
    cancelled = run(timeout_seconds=70.0, cancel_requested_at=after(60), cancel_reason="late").stopping(30)
    assert cancelled is not None
    assert (cancelled.reason, cancelled.since, cancelled.cancel_reason) == ("cancel", after(60), "late")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"timeout_seconds": 101.0},
        {"cancel_requested_at": after(1), "completed_at": after(2)},
        {"cancel_requested_at": after(1), "started_at": None},
    ],
)
def test_what_was_not_asked_or_does_not_run_is_not_being_stopped(fields: dict[str, Any]) -> None:
    assert run(**fields).asked_at() is None
    assert run(**fields).stopping(30) is None


@pytest.mark.parametrize(("grace_seconds", "seconds"), [(5.0, 5), (480.0, 30), (None, 30)])
def test_the_executor_ends_what_its_worker_has_not_killed_by_then(
    grace_seconds: float | None, seconds: float
) -> None:
    shown = run(cancel_requested_at=after(60), stop_grace_seconds=grace_seconds).stopping(30)
    assert shown is not None
    assert shown.kill_at == after(60 + seconds)
