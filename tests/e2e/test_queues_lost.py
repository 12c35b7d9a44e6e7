"""P5 and P7 when the broker's queues are purged or deleted: what is in the database is published again."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aio_pika
import pytest

from tests.e2e.test_restarts import admission_blocked
from tests.support.environment import StartEnvironment
from tests.support.history import started_in
from tests.support.steady import steady
from tests.support.traffic import submit, until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    DEAD_LETTERS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    EXECUTOR_RETRY,
    WORKER_RETRY,
    pool_queue,
    worker_queue,
)
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import completed_message, scheduled_message

SHORT_TIMEOUTS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "300ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "1s",
    "TURNSTILE_SETTLE_TIMEOUT": "1s",
}
UNKNOWN = 10**12
UNCONSUMED = (EXECUTOR_RETRY, WORKER_RETRY, DEAD_LETTERS)


@pytest.mark.whole
async def test_every_queue_behind_the_requests_can_be_purged_and_deleted_under_load_at_the_cost_of_time(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    async with start_env(workers=2, settings=SHORT_TIMEOUTS) as env:
        held = await env.submit("hold")
        await env.until_status(held, "running")
        consumed = [worker_queue(row["id"]) for row in await env.history.rows("SELECT id FROM worker")]
        consumed += [pool_queue("default"), EXECUTOR_COMPLETIONS]
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            for delete in (False, True):
                await client.submit_fast(150)
                await _lose(env.amqp_url, *consumed, *UNCONSUMED, delete=delete)
                await client.continues("the loss of all queues")
            await until(lambda: _all_exist(env.amqp_url, *consumed), "the consumed queues are back")
            await _lose(env.amqp_url, *UNCONSUMED, delete=True)
            unknown = _unknown()
            await client.publisher.publish([*unknown, *(replace(m, body=b"{}") for m in unknown)])
            await client.continues("the loss of queues without consumers")
            await until(lambda: _all_exist(env.amqp_url, *UNCONSUMED), "the needed queues are back")
        await client.all_ran_once_in_order(env.history)
        await env.stop_running()
        assert await env.attempts(held) == [(1, "cancelled")]


async def test_requests_not_admitted_are_lost_with_their_queue_which_is_declared_again_while_the_rest_drains(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(43)]
    settings = {"TURNSTILE_BATCH_MAX": "2", "TURNSTILE_LOCK_TIMEOUT": "1m"}
    async with start_env(executors=2, settings=settings) as env:

        async def until_ran(number: int) -> None:
            async def ran() -> bool:
                return number in started_in(file)

            await until(ran, f"number {number} ran")

        await submit(env.amqp_url, bodies[:1])
        await until_ran(0)
        for first, delete in ((1, False), (22, True)):
            async with admission_blocked(env.system.database_url) as admitting:
                await submit(env.amqp_url, bodies[first : first + 20])
                await until(lambda: admitting(1), "a batch is being admitted")
                await _lose(env.amqp_url, EXECUTOR_REQUESTS, delete=delete)
            await until(lambda: _all_exist(env.amqp_url, EXECUTOR_REQUESTS), "the queue exists")
            await submit(env.amqp_url, bodies[first + 20 : first + 21])
            await until_ran(first + 20)
        await env.history.ended(await env.history.value("SELECT count(*) FROM execution"))
    started = started_in(file)
    assert started == sorted(set(started))
    for first in (1, 22):
        admitted = len({*range(first, first + 20)}.intersection(started))
        assert 1 <= admitted <= 10, "the batch in progress is admitted, the rest of the queue is lost"


def _unknown() -> list[Outgoing]:
    """Return messages about an unknown execution: they pass the delay queues until they are dead
    letters.
    """
    completed = completed_message(
        execution_id=UNKNOWN,
        action_id=1,
        action_ref="record",
        status=Status.COMPLETED,
        attempt=1,
        completed_at=datetime.now(UTC),
        app_id="worker",
    )
    return [completed, scheduled_message(UNKNOWN, 1, "record", pool="default", traceparent=None)]


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
