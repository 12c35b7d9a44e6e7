"""Who leads when a leader is killed, stopped, cut off or told to end: real processes, real servers (P5, P6).

The bounds are those of docs/architecture.md. A machine that runs the tests is busy: they have a margin here.
"""

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.leader_process.support import (
    Executor,
    Store,
    executor,
    has_action,
    led_by_the_first,
    publish_requests,
    resumed_at_the_end,
)
from tests.support.proxy import Flow, LinkState, Proxy, proxy_to
from tests.support.traffic import until
from turnstile.executor.questions.protocol import Answered, LeaderState, Leading

KILLED_SECONDS = 2.0
PAUSED_SECONDS = 5.0
STOPPED_SECONDS = 1.0
MARGIN_SECONDS = 1.0


async def seconds_until_another_leads(others: list[Executor], began_at: float) -> tuple[Executor, float]:
    """Return who leads next, and after how long."""
    await until(lambda: any(each.is_leading for each in others), "another leads", deadline_seconds=30)
    leads = next(each for each in others if each.is_leading)
    seconds = leads.led_at[-1] - began_at
    print(f"{seconds:.2f} s until another leads")
    return leads, seconds


async def test_a_killed_leader_is_followed_within_two_seconds(database_url: str, amqp_url: str) -> None:
    urls = (database_url, amqp_url)
    async with led_by_the_first(*urls, urls, urls) as executors:
        first, *others = executors
        epoch, began_at = first.epoch, time.monotonic()
        first.signal(signal.SIGKILL)
        leads, seconds = await seconds_until_another_leads(others, began_at)
        assert seconds < KILLED_SECONDS + MARGIN_SECONDS
        assert leads.epoch > epoch
        # Its parent starts it again, and it waits.
        await first.until_waiting()
        assert first.leader.starts == 2
        assert [each.is_leading for each in others].count(True) == 1


async def test_a_leader_that_is_stopped_is_followed_within_five_seconds_and_commits_nothing_more(
    database_url: str, amqp_url: str, store: Store
) -> None:
    async with led_by_the_first(database_url, amqp_url) as (first, second):
        epoch, began_at = first.epoch, time.monotonic()
        pid = first.signal(signal.SIGSTOP)
        with resumed_at_the_end(pid):
            _, seconds = await seconds_until_another_leads([second], began_at)
            assert seconds < PAUSED_SECONDS + MARGIN_SECONDS
            turns = await store.turns(epoch)
            first.signal(signal.SIGCONT)
            await first.until_waiting()
            # It has met the fence, and its process lives.
            assert await store.turns(epoch) <= turns
            assert (await store.leader())[0] == second.epoch
            assert second.is_leading
            assert first.leader.starts == 1


async def test_a_leader_that_ends_in_order_hands_over_within_a_second(
    database_url: str, amqp_url: str
) -> None:
    async with led_by_the_first(database_url, amqp_url, (database_url, amqp_url)) as executors:
        first, *others = executors
        began_at = time.monotonic()
        await first.stop()
        _, seconds = await seconds_until_another_leads(others, began_at)
        assert seconds < STOPPED_SECONDS + MARGIN_SECONDS


@asynccontextmanager
async def cut_off(
    database_url: str, amqp_url: str, *, at_database: bool
) -> AsyncIterator[tuple[Proxy, Executor, Executor]]:
    """Two executors, of which the first leads, with one of its two links over a proxy."""
    async with proxy_to(database_url if at_database else amqp_url) as proxy:
        urls = (proxy.url, amqp_url) if at_database else (database_url, proxy.url)
        async with executor("cut", *urls) as first, executor("other", database_url, amqp_url) as second:
            # The second one may have been earlier.
            await until(lambda: first.is_leading or second.is_leading, deadline_seconds=20)
            if second.is_leading:
                second.signal(signal.SIGTERM)
                await first.until_leading()
            await second.until_waiting()
            yield proxy, first, second


@pytest.mark.parametrize("how", ["held", "refused"])
async def test_a_leader_without_the_database_is_followed_and_commits_nothing_more(
    database_url: str, amqp_url: str, store: Store, how: str
) -> None:
    states = {
        "held": LinkState(up=Flow.HOLD, down=Flow.HOLD),
        "refused": LinkState(refuses=True),
    }
    async with cut_off(database_url, amqp_url, at_database=True) as (proxy, first, second):
        epoch, began_at = first.epoch, time.monotonic()
        proxy.state = states[how]
        _, seconds = await seconds_until_another_leads([second], began_at)
        assert seconds < PAUSED_SECONDS + MARGIN_SECONDS
        await first.until_waiting()
        turns = await store.turns(epoch)
        proxy.thaw()
        found = await until_answered(second)
        assert found.epoch == second.epoch
        assert await store.turns(epoch) <= turns
        assert (await store.leader())[0] == second.epoch


@pytest.mark.parametrize("how", ["held", "refused"])
async def test_a_leader_without_the_broker_yields_to_one_that_has_it(
    database_url: str, amqp_url: str, store: Store, how: str
) -> None:
    state = LinkState(refuses=True) if how == "refused" else LinkState(up=Flow.HOLD, down=Flow.HOLD)
    async with cut_off(database_url, amqp_url, at_database=False) as (proxy, first, second):
        began_at = time.monotonic()
        proxy.state = state
        _, seconds = await seconds_until_another_leads([second], began_at)
        assert seconds < 2 * PAUSED_SECONDS + MARGIN_SECONDS
        await first.until_waiting()
        await store.define("a")
        await until(lambda: has_action(second.asker, "a"), "the action is there", deadline_seconds=20)
        await publish_requests(amqp_url, 10)
        await until(lambda: ten(store), "the requests are admitted", deadline_seconds=20)
        proxy.thaw()


async def ten(store: Store) -> bool:
    return await store.admitted() == 10


async def until_answered(one: Executor) -> Answered[LeaderState]:
    found: list[Answered[LeaderState]] = []

    async def is_answered() -> bool:
        answer = await one.asker.ask(Leading())
        if isinstance(answer, Answered):
            found.append(answer)
        return bool(found)

    await until(is_answered, f"{one.name} answers", deadline_seconds=20)
    return found[0]
