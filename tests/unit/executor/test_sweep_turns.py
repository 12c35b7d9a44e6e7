"""Which executor sweeps, and when a round of sweeps counts as complete."""

import asyncio

import pytest

from tests.support.clock import Clock
from turnstile.executor.metrics import LAST_SWEEP
from turnstile.executor.sweep_turns import SweepTurns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> SweepTurns:
    turns = SweepTurns(10.0, clock)
    turns.expect(["wake_due", "reclaim_lost"], ["prune_pools"])
    return turns


def test_an_executor_that_receives_no_notice_sweeps(turns: SweepTurns) -> None:
    assert not turns.stands_by


def test_an_executor_stands_by_for_an_interval_after_each_notice_of_another(
    turns: SweepTurns, clock: Clock
) -> None:
    turns.received("another")
    clock.now += 9.9
    assert turns.stands_by
    turns.received("a third")
    clock.now += 9.9
    assert turns.stands_by
    clock.now += 0.1
    assert not turns.stands_by


def test_of_several_that_swept_at_once_the_last_one_heard_sweeps_next(clock: Clock) -> None:
    several = [SweepTurns(10.0, clock) for _ in range(3)]
    # The database delivers all notices in one order, to the senders too.
    for sender in several:
        for each in several:
            each.received(sender.name)
    assert [each.stands_by for each in several] == [True, True, False]


def test_a_notice_of_another_executor_reports_each_of_its_sweeps(
    turns: SweepTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LAST_SWEEP, "values", {})
    turns.received("another")
    assert LAST_SWEEP.values[("prune_pools",)] > 0


async def test_a_round_is_complete_when_each_required_sweep_has_succeeded_in_it(turns: SweepTurns) -> None:
    await turns.begin()
    assert not turns.succeeded("wake_due", 1)
    assert not turns.succeeded("prune_pools", 1)
    assert turns.succeeded("reclaim_lost", 1)
    assert not turns.succeeded("reclaim_lost", 1), "a second notice of one round"


async def test_a_sweep_of_an_earlier_round_does_not_complete_the_current_one(turns: SweepTurns) -> None:
    await turns.begin()
    await turns.begin()
    assert not turns.succeeded("wake_due", 2)
    assert not turns.succeeded("reclaim_lost", 1)


@pytest.mark.parametrize("failed", ["reclaim_lost", "prune_pools"])
async def test_a_round_with_a_failed_sweep_is_not_complete_and_the_next_one_may_be(
    turns: SweepTurns, failed: str
) -> None:
    await turns.begin()
    turns.failed(failed)
    assert not turns.succeeded("wake_due", 1)
    assert not turns.succeeded("reclaim_lost", 1)
    await turns.begin()
    assert not turns.succeeded("wake_due", 2)
    assert turns.succeeded("reclaim_lost", 2)


async def test_sweeps_wait_for_the_round_that_they_name(turns: SweepTurns) -> None:
    waiting = asyncio.create_task(turns.reach(2))
    await turns.begin()
    assert await turns.reach(1) == 1
    assert not waiting.done()
    await turns.begin()
    assert await waiting == 2


async def test_no_round_begins_while_another_executor_sweeps() -> None:
    turns = SweepTurns(0.01)
    turns.received("another")
    running = asyncio.create_task(turns.run())
    await asyncio.sleep(0)
    assert turns.number == 0
    assert await turns.reach(3) == 3
    running.cancel()
