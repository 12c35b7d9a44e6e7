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


@pytest.mark.parametrize(
    ("cancel_at", "timeout_at", "grace_seconds", "kill_at"),
    [
        (60, None, 5.0, 65),
        (60, None, 480.0, 75),
        (60, None, None, 75),
        (None, 60, 5.0, 65),
        (None, 60, 480.0, 90),
        (None, 60, None, 90),
        (65, 60, None, 80),
        (80, 60, None, 90),
    ],
)
def test_the_leader_ends_what_its_worker_has_not_killed_by_then(
    cancel_at: float | None, timeout_at: float | None, grace_seconds: float | None, kill_at: float
) -> None:
    cancelled = None if cancel_at is None else after(cancel_at)
    stopped = run(cancel_requested_at=cancelled, timeout_seconds=timeout_at, stop_grace_seconds=grace_seconds)
    shown = stopped.stopping(15)
    assert shown is not None
    assert shown.kill_at == after(kill_at)
