"""P5 and P7 when the queue of the requests is deleted: it is declared again, and what was admitted runs."""

from pathlib import Path

import aio_pika

from tests.support.environment import StartEnvironment
from tests.support.steady import steady
from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTOR_REQUESTS


async def test_a_deleted_queue_of_requests_is_declared_again_and_what_was_admitted_runs(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env() as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            async with client.paused() as requests:
                admitted = "SELECT count(*) = $1 FROM ledger.execution"
                await env.history.until(admitted, requests)
                await _delete(env.amqp_url, EXECUTOR_REQUESTS)
                await until(lambda: _exists(env.amqp_url, EXECUTOR_REQUESTS), "the queue exists")
            await client.continues("the loss of the queue")
        await client.all_ran_once_in_order(env.history)


async def _delete(amqp_url: str, name: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        queue = await (await connection.channel()).get_queue(name, ensure=False)
        await queue.delete(if_unused=False, if_empty=False)


async def _exists(amqp_url: str, name: str) -> bool:
    async with await aio_pika.connect(amqp_url) as connection:
        try:
            await (await connection.channel()).declare_queue(name, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return False
    return True
