"""The leader's rest ends when something arrives, and no arrival is missed."""

import asyncio
import time

from turnstile.executor.leader.clock import LeaderClock

LONG_SECONDS = 60.0
SHORT_SECONDS = 5.0
"""Far more than a rest that is ended takes, and far less than one that is not."""


async def test_what_arrives_ends_the_rest() -> None:
    clock = LeaderClock()
    resting = asyncio.create_task(clock.wait(LONG_SECONDS))
    await asyncio.sleep(0)
    clock.wake()
    await asyncio.wait_for(resting, SHORT_SECONDS)


async def test_what_arrived_before_the_rest_ends_it_at_once_and_only_that_one() -> None:
    clock = LeaderClock()
    clock.wake()
    clock.wake()
    await asyncio.wait_for(clock.wait(LONG_SECONDS), SHORT_SECONDS)
    began_at = clock.monotonic()
    await clock.wait(0.05)
    assert clock.monotonic() - began_at >= 0.04


async def test_the_clock_counts_while_the_machine_sleeps() -> None:
    assert abs(LeaderClock().monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)) < SHORT_SECONDS
