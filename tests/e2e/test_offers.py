"""P9: what waits to be claimed fills no queue with copies, and what nobody can run delays no neighbour."""

import asyncio
from datetime import UTC, datetime, timedelta

import aio_pika

from tests.support.brokers import ready_messages
from tests.support.stage import Stage, staged
from tests.support.traffic import until

POOL_QUEUE = "worker.default"
WAITING = 60
SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "100ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "200ms",
    "TURNSTILE_WORKER_CONCURRENCY": "1",
}


async def purge(amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(POOL_QUEUE)).purge()


async def until_ready(stage: Stage, least: int) -> None:
    async def is_so() -> bool:
        return await ready_messages(stage.amqp_url, POOL_QUEUE) >= least

    await until(is_so, f"{least} offers wait", deadline_seconds=20)


async def behind_a_busy_worker(stage: Stage) -> tuple[int, list[int]]:
    """Submit what holds the one place of the one worker, and others behind it."""
    first = await stage.submit("hold")
    await stage.stands(first, "running")
    others = await stage.submit_many([{"action_ref": "scripted", "parameters": {"steps": ["OK"]}}] * WAITING)
    await until_ready(stage, WAITING)
    return first, others


async def test_offers_that_the_broker_holds_are_not_copied_and_lost_ones_are_made_again_by_any_executor(
    database_url: str, amqp_url: str
) -> None:
    async with staged(database_url, amqp_url, executors=2, settings=SETTINGS) as stage:
        first, others = await behind_a_busy_worker(stage)
        # Thirty dispatch timeouts: each offer was copied ten times in them.
        await asyncio.sleep(6)
        assert WAITING <= await ready_messages(amqp_url, POOL_QUEUE) <= 2 * WAITING
        await purge(amqp_url)
        await until_ready(stage, WAITING)
        await asyncio.sleep(1)
        assert await ready_messages(amqp_url, POOL_QUEUE) <= 2 * WAITING
        await stage.cancel(first)
        assert set(await stage.ended(*others)) == {"completed"}
        assert await stage.attempts(others[0]) == [(1, "completed")]


async def test_what_no_worker_has_code_for_is_offered_to_nobody_until_one_comes(
    database_url: str, amqp_url: str
) -> None:
    settings = {**SETTINGS, "TURNSTILE_WORKER_CONCURRENCY": "4"}
    async with staged(database_url, amqp_url, actions="tests.e2e.other_actions", settings=settings) as stage:
        # Known to nobody but the executor, whose watchdog has to have seen it once.
        await stage.put("one")
        await asyncio.sleep(2)
        before = datetime.now(UTC)
        ids = await stage.submit_many([{"action_ref": "one"}] * 200)
        await stage.stands(ids[-1], "scheduled")
        withheld = "SELECT count(*) FROM slot WHERE offered_at IS NULL"

        async def all_withheld() -> bool:
            return bool(await stage.history.value(withheld) == len(ids))

        await until(all_withheld, "all are withheld", deadline_seconds=20)
        await asyncio.sleep(1)
        assert await ready_messages(amqp_url, POOL_QUEUE) == 0
        assert "action_not_served" not in stage.system.workers[0].log.read_text()
        assert (await stage.get(ids[0]))["waiting_on"]["reason"] == "no_worker"
        assert datetime.now(UTC) - before > timedelta(seconds=1)
        await stage.start_worker()
        assert set(await stage.ended(*ids)) == {"completed"}
