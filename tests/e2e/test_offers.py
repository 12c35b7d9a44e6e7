"""P9: offers fill no queue with copies, and what no worker has code for delays no other execution."""

import asyncio

import aio_pika

from tests.support.brokers import ready_messages
from tests.support.environment import POOL_QUEUE, Environment, StartEnvironment
from tests.support.traffic import until

WAITING = 60
LEAD_MAX = 12
"""One worker leads by one, and by what it completed lately."""
OTHER = "tests.e2e.other_actions"
SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "100ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "200ms",
    "TURNSTILE_WORKER_CONCURRENCY": "1",
}


async def until_at_least(env: Environment, count: int) -> None:
    async def wait() -> bool:
        return await ready_messages(env.amqp_url, POOL_QUEUE) >= count

    await until(wait, f"{count} offers wait", deadline_seconds=20)


async def test_offers_wait_for_workers_as_far_as_their_lead_and_lost_ones_are_made_again_by_any_executor(
    start_env: StartEnvironment,
) -> None:
    async with start_env(executors=2, settings=SETTINGS) as env:
        first = await env.submit("hold")
        await env.until_status(first, "running")
        others = await env.submit_many(
            [{"action_ref": "scripted", "parameters": {"steps": ["OK"]}}] * WAITING
        )
        await until_at_least(env, 1)
        # Seven dispatch timeouts, in which an executor without that check copies each offer many times.
        await asyncio.sleep(1.4)
        assert 1 <= await ready_messages(env.amqp_url, POOL_QUEUE) <= LEAD_MAX
        async with await aio_pika.connect(env.amqp_url) as connection:
            channel = await connection.channel()
            await (await channel.get_queue(POOL_QUEUE)).purge()
        await until_at_least(env, 1)
        await asyncio.sleep(1)
        assert await ready_messages(env.amqp_url, POOL_QUEUE) <= 2 * LEAD_MAX
        await env.cancel(first)
        assert set(await env.ended(*others)) == {"completed"}
        assert await env.attempts(others[0]) == [(1, "completed")]


async def test_an_action_that_no_worker_serves_is_not_offered_until_a_worker_serves_it(
    start_env: StartEnvironment,
) -> None:
    settings = {**SETTINGS, "TURNSTILE_WORKER_CONCURRENCY": "4"}
    async with start_env(actions=OTHER, settings=settings) as env:
        # Known to the executor alone.
        await env.put("one")
        ids = await env.submit_many([{"action_ref": "one"}] * 50)
        await asyncio.sleep(1)
        assert await env.status(ids[0]) == "queued"
        assert await ready_messages(env.amqp_url, POOL_QUEUE) == 0
        assert "action_not_served" not in env.worker.log.read_text()
        assert (await env.get(ids[0]))["waiting_on"]["reason"] == "no_worker"
        assert (await env.stats("one"))["waiting"]["no_worker"] == 50
        other = await env.submit("other")
        assert await env.ended(other) == ["completed"]
        await env.start_worker()
        assert set(await env.ended(*ids)) == {"completed"}
