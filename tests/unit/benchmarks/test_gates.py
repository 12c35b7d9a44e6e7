"""The rate that is used, from the instants of grants."""

from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.actions import RATE_SECONDS, RATE_STARTS
from benchmarks.gates import rate_section
from benchmarks.run import Run

RUN = Run(executions=1, seconds=1.0, cpu_seconds={}, wal_bytes=0)
BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window_seconds", "share", "windows"),
    [(RATE_SECONDS, 1.0, 0), (RATE_SECONDS * 1.25, 0.8, 0), (RATE_SECONDS * 0.5, 2.0, 2 * RATE_STARTS)],
)
def test_a_rate_is_checked_in_each_window(window_seconds: float, share: float, windows: int) -> None:
    granted_ats = [
        BEGAN_AT + timedelta(seconds=window_seconds) * number
        for number in range(3)
        for _ in range(RATE_STARTS)
    ]
    used, exceeded = (row.cells for row in rate_section(granted_ats, RUN).rows[:2])
    assert list(used.values()) == [pytest.approx(share)]
    assert list(exceeded.values()) == [windows]
