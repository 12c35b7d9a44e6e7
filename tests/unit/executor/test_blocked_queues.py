"""Queues that other sessions hold are tried without waiting, and waited for again later."""

import time

import pytest

from tests.support.clock import Clock
from turnstile.common.domain.identifiers import QueueId
from turnstile.executor.slot_grants import BlockedQueues

ONE, TWO = QueueId(1), QueueId(2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_the_pause_before_the_next_wait_for_a_held_queue_grows(clock: Clock) -> None:
    held = BlockedQueues()
    for seconds in (1.0, 2.0, 4.0, 8.0, 8.0):
        held.note([ONE], [])
        clock.now += seconds - 0.1
        assert held.suspects() == [ONE]
        # A try that failed without a wait prolongs nothing.
        held.note([ONE], [])
        clock.now += 0.2
        assert held.suspects() == []


def test_a_queue_that_could_be_locked_is_awaited_like_any_other(clock: Clock) -> None:
    held = BlockedQueues()
    held.note([ONE, TWO], [])
    held.note([], [ONE])
    assert held.suspects() == [TWO]
    held.note([ONE], [])
    clock.now += 1.1
    assert held.suspects() == []


def test_the_memory_is_bounded() -> None:
    held = BlockedQueues()
    held.note([QueueId(n) for n in range(5000)], [])
    assert held.suspects() == [QueueId(n) for n in range(4000, 5000)]


def test_after_a_timeout_nothing_is_waited_for_in_pauses_that_grow(clock: Clock) -> None:
    held = BlockedQueues()
    for seconds in (1.0, 2.0, 4.0, 8.0, 8.0):
        held.timed_out()
        clock.now += seconds - 0.1
        assert held.suspects() is None
        clock.now += 0.2
        assert held.suspects() == []
    held.got_all()
    held.timed_out()
    clock.now += 1.1
    assert held.suspects() == []
