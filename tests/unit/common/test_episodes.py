"""A repeated failure is logged at its start, once a minute with a count, and at its end; no count is lost."""

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from turnstile.common.telemetry import logs
from turnstile.common.telemetry.logs import Episodes

LOGGER = logging.getLogger("turnstile.test")


class Clock:
    """Stands for `time.monotonic`; a test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def sweeper(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> logs._Sweeper:
    """A sweeper of the test's own, so that no other thread ends its episodes."""
    caplog.set_level(logging.INFO, LOGGER.name)
    monkeypatch.setattr(logs, "_QUIET_SECONDS", 60.0)
    fresh = logs._Sweeper()
    monkeypatch.setattr(logs, "_SWEEPER", fresh)
    return fresh


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, sweeper: logs._Sweeper) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(sweeper, "start", lambda: None)
    return clock


def lines(caplog: pytest.LogCaptureFixture, *fields: str) -> list[tuple[Any, ...]]:
    """Return the event, the count and these fields of each line since the last call."""
    found = [record for record in caplog.records if record.name == LOGGER.name]
    caplog.clear()
    names = ("count", *fields)
    return [
        (record.getMessage(), *(record.__dict__[name] for name in names if name in record.__dict__))
        for record in found
    ]


def test_a_failure_that_is_not_seen_for_a_minute_ends_by_itself_with_its_count_and_fields(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "refused", level=logging.ERROR)
    for second in range(3):
        clock.now = 1000.0 + second
        episodes.failed("a", code="a", reason=f"number {second}")
    assert lines(caplog, "reason") == [("refused", 1, "number 0")]
    clock.now += 59
    assert sweeper.sweep()
    assert lines(caplog) == []
    clock.now += 1
    assert not sweeper.sweep()
    (over,) = caplog.records
    assert (over.levelname, over.__dict__["quiet_seconds"]) == ("INFO", 60)
    assert lines(caplog, "code", "reason") == [("refused_over", 2, "a", "number 2")]
    # The next failure is a new start.
    episodes.failed("a", code="a")
    assert lines(caplog) == [("refused", 1)]


def test_a_failure_that_did_not_repeat_has_only_its_own_line(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "refused")
    episodes.failed("a")
    clock.now += 100
    assert not sweeper.sweep()
    assert lines(caplog) == [("refused", 1)]


def test_failures_that_were_counted_after_an_end_are_not_lost(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "refused")
    for _ in range(20):
        episodes.failed("a")
        episodes.works("a")
    assert lines(caplog) == [("refused", 1), ("refused_over", 0)]
    clock.now += 60
    sweeper.sweep()
    assert lines(caplog) == [("refused_over", 19)]


def test_a_lasting_state_does_not_end_while_nothing_tries_it(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "unusable", lasting=True)
    episodes.failed("a")
    episodes.failed("a")
    clock.now += 3600
    assert sweeper.sweep()
    assert lines(caplog) == [("unusable", 1)]
    episodes.works("a")
    episodes.failed("a", reason="again")
    assert lines(caplog) == [("unusable_over", 1), ("unusable", 1)]
    episodes.works("a")
    episodes.failed("a", reason="and again")
    assert lines(caplog) == [("unusable_over", 0)]
    # The last line must not be its end, since it fails.
    clock.now += 60
    assert sweeper.sweep()
    assert lines(caplog, "reason") == [("unusable", 1, "and again")]
    episodes.all_work()
    assert lines(caplog) == [("unusable_over", 0)]


def test_ten_thousand_different_failures_are_a_hundred_lines_and_one_for_the_others(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "undelivered")
    for number in range(10_000):
        episodes.failed(f"queue {number}", queue=number)
    starts = lines(caplog, "others")
    assert starts == [("undelivered", 1)] * 100 + [("undelivered", 1, True)]
    clock.now += 60
    assert not sweeper.sweep()
    assert lines(caplog, "others") == [("undelivered_over", 9_899, True)]


def test_failures_in_several_threads_are_all_counted(
    sweeper: logs._Sweeper, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    episodes = Episodes(LOGGER, "refused")

    def fail() -> None:
        for _ in range(2_000):
            episodes.failed("a")
            episodes.works("b")

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    episodes.works("a")
    assert lines(caplog) == [("refused", 1), ("refused_over", 15_999)]


async def test_a_thread_ends_quiet_failures_and_itself(
    sweeper: logs._Sweeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "_QUIET_SECONDS", 0.05)
    monkeypatch.setattr(logs, "_SWEEP_SECONDS", 0.01)
    episodes = Episodes(LOGGER, "refused")
    for _ in range(2):
        # It starts again after an end.
        with sweeper.lock:
            episodes.failed("a")
            episodes.failed("a")
            thread = sweeper._thread
        assert thread is not None
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        assert lines(caplog) == [("refused", 1), ("refused_over", 1)]
