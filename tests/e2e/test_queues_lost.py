"""P5 and P7 when the broker's queues are purged or deleted: what is lost with them is sent again."""

from pathlib import Path

import aio_pika
import pytest

from tests.support.environment import StartEnvironment
from tests.support.steady import steady
from tests.support.traffic import until
from turnstile.common.broker.topology import (
    DEAD_LETTERS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    EXECUTOR_REQUESTS,
)

SHORT_LEASE = {"TURNSTILE_LEASE_DURATION": "4s", "TURNSTILE_HEARTBEAT_INTERVAL": "1s"}
BEHIND_THE_REQUESTS = (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS, DEAD_LETTERS)


@pytest.mark.whole
async def test_every_queue_behind_the_requests_can_be_purged_and_deleted_under_load_at_the_cost_of_time(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env(workers=2, settings=SHORT_LEASE) as env:
        held = await env.submit("hold")
        await env.until_status(held, "running")
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            for delete in (False, True):
                await client.submit_fast(150)
                await _lose(env.amqp_url, *BEHIND_THE_REQUESTS, delete=delete)
                await client.continues("the loss of all queues")
            await until(lambda: _all_exist(env.amqp_url, *BEHIND_THE_REQUESTS), "the queues are back")
        await client.all_ran_once_in_order(env.history)
        await env.stop_running()
        assert await env.attempts(held) == [(1, "cancelled")]


async def test_a_deleted_queue_of_requests_is_declared_again_and_what_was_admitted_runs(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env() as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            async with client.paused() as requests:
                admitted = "SELECT count(*) = $1 FROM ledger.execution"
                await env.history.until(admitted, requests)
                await _lose(env.amqp_url, EXECUTOR_REQUESTS, delete=True)
                await until(lambda: _all_exist(env.amqp_url, EXECUTOR_REQUESTS), "the queue exists")
            await client.continues("the loss of the queue")
        await client.all_ran_once_in_order(env.history)


async def _lose(amqp_url: str, *queues: str, delete: bool) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await (queue.delete(if_unused=False, if_empty=False) if delete else queue.purge())


async def _all_exist(amqp_url: str, *queues: str) -> bool:
    async with await aio_pika.connect(amqp_url) as connection:
        for name in queues:
            channel = await connection.channel()
            try:
                await channel.declare_queue(name, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return False
    return True
