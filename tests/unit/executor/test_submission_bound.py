"""The bound of the submissions: it rises past what is decided, and never past an open transaction."""

import pytest

from tests.support.clock import Clock
from turnstile.executor import submission_listener
from turnstile.executor.protocol import SubmissionPage
from turnstile.executor.submission_listener import SubmissionBound


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(submission_listener, "monotonic", clock)
    return clock


def poll(bound: SubmissionBound, clock: Clock, newest: int, oldest: int | None, *entering: str) -> int:
    """Poll once, a second later; return where the poll begins."""
    clock.now += 1
    from_ticket, with_entering = bound.begin()
    assert with_entering
    bound.read(
        SubmissionPage(
            submissions=[], newest_ticket=newest, oldest_ticket=oldest, entering=frozenset(entering)
        )
    )
    return from_ticket


def test_it_rises_by_the_poll_after_the_one_that_saw_a_ticket(clock: Clock) -> None:
    bound = SubmissionBound()
    assert [poll(bound, clock, newest, None) for newest in (5, 9, 9, 9)] == [0, 0, 6, 10]


def test_it_waits_for_the_transactions_that_were_open(clock: Clock) -> None:
    bound = SubmissionBound()
    poll(bound, clock, 5, None, "3/7")
    assert [poll(bound, clock, 9, None, "3/7", "4/1") for _ in range(3)] == [0, 0, 0]
    # The first has ended; the one that began later does not count for the tickets before it.
    poll(bound, clock, 9, None, "4/1")
    assert poll(bound, clock, 9, None, "4/1") == 6


def test_it_waits_for_what_is_not_decided(clock: Clock) -> None:
    bound = SubmissionBound()
    assert [poll(bound, clock, 9, 4) for _ in range(3)] == [0, 0, 4]
    assert [poll(bound, clock, 9, None) for _ in range(2)] == [4, 10]


def test_it_is_not_raised_by_polls_that_did_not_list_the_transactions(clock: Clock) -> None:
    bound = SubmissionBound()
    poll(bound, clock, 5, None)
    assert bound.begin() == (0, False)
    bound.read(SubmissionPage(submissions=[], newest_ticket=5, oldest_ticket=None, entering=None))
    assert bound.begin() == (0, False)
    assert poll(bound, clock, 5, None) == 0
    assert poll(bound, clock, 5, None) == 6


def test_a_sweep_begins_at_the_first_ticket(clock: Clock) -> None:
    bound = SubmissionBound()
    for _ in range(3):
        poll(bound, clock, 5, None)
    assert poll(bound, clock, 5, None) == 6
    clock.now += 60
    assert poll(bound, clock, 5, None) == 0
    assert poll(bound, clock, 5, None) == 6


def test_it_says_for_how_long_the_oldest_is_left(clock: Clock) -> None:
    bound = SubmissionBound()
    poll(bound, clock, 9, 4)
    poll(bound, clock, 9, 4)
    clock.now += 2
    assert bound.left_seconds() == 3
    poll(bound, clock, 9, 5)
    assert bound.left_seconds() == 0
    poll(bound, clock, 9, None)
    clock.now += 2
    assert bound.left_seconds() == 0
