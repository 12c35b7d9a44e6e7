"""P5 and P7 when somebody purges or deletes the broker's queues: what is recorded is told again."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aio_pika

from tests.e2e.admission import lines_locked
from tests.e2e.held import held_all_the_time, hold
from tests.support.history import history_of, physical
from tests.support.processes import running
from tests.support.steady import steady
from tests.support.traffic import submit, until
from turnstile.common.broker.delivery import Outgoing
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
from turnstile.common.messages import ExecutionCompleted, ExecutionScheduled

SHORT_TIMEOUTS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "300ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "1s",
    "TURNSTILE_SETTLE_TIMEOUT": "1s",
}
UNKNOWN = 10**12
UNCONSUMED = (EXECUTOR_RETRY, WORKER_RETRY, DEAD_LETTERS)


async def test_every_queue_behind_the_requests_can_be_purged_and_deleted_under_load_at_the_cost_of_time(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, amqp_url, workers=2, settings=SHORT_TIMEOUTS) as system,
        history_of(database_url) as history,
    ):
        held = await hold(system)
        workers = await history.rows("SELECT id FROM worker")
        consumed = [worker_queue(row["id"]) for row in workers]
        consumed += [pool_queue("default"), EXECUTOR_COMPLETIONS]
        async with steady(amqp_url, tmp_path) as client:
            await client.goes_on("the start")
            for delete in (False, True):
                await client.hurries(150)
                await _lose(amqp_url, *consumed, *UNCONSUMED, delete=delete)
                await client.goes_on("the loss of all queues")
            await until(lambda: _all_there(amqp_url, *consumed), "what is consumed is back")
            await _lose(amqp_url, *UNCONSUMED, delete=True)
            await client.publisher.publish([*_unknown(), *_unusable()])
            await client.goes_on("the loss of queues that nobody watches")
            await until(lambda: _all_there(amqp_url, *UNCONSUMED), "what is needed is back")
        await client.all_ran_once_in_order(history)
        await held_all_the_time(system, history, held)


async def test_requests_that_nobody_had_taken_go_with_their_queue_which_comes_back_while_the_rest_drains(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(43)]
    async with (
        running(
            database_url,
            amqp_url,
            executors=2,
            settings={"TURNSTILE_BATCH_MAX": "2", "TURNSTILE_LOCK_TIMEOUT": "1m"},
        ),
        history_of(database_url) as history,
    ):

        async def ran(number: int) -> bool:
            return file.exists() and number in {line.number for line in physical(file)}

        await submit(amqp_url, bodies[:1])
        await until(lambda: ran(0), "the first one ran")
        for first, delete in ((1, False), (22, True)):
            async with lines_locked(database_url) as admitting:
                await submit(amqp_url, bodies[first : first + 20])
                await until(lambda: admitting(1), "a batch is being admitted")
                await _lose(amqp_url, EXECUTOR_REQUESTS, delete=delete)
            await until(lambda: _all_there(amqp_url, EXECUTOR_REQUESTS), "the queue is there")
            await submit(amqp_url, bodies[first + 20 : first + 21])
            await until(partial(ran, first + 20), "requests are taken again")
        await history.ended(await history.value("SELECT count(*) FROM execution"))
    started = [line.number for line in physical(file) if line.event == "start"]
    assert started == sorted(set(started))
    for first in (1, 22):
        kept = len({*range(first, first + 20)}.intersection(started))
        assert 1 <= kept <= 10, "what was being admitted is kept, what waited in the queue is not"


def _unknown() -> list[Outgoing]:
    """Return what neither service can know yet: it goes round the delay queues until it is given up."""
    completed = ExecutionCompleted(
        execution_id=UNKNOWN,
        action_id=1,
        action_ref="record",
        status=Status.COMPLETED,
        attempt=1,
        completed_at=datetime.now(UTC),
    )
    scheduled = ExecutionScheduled(execution_id=UNKNOWN, attempt=1, action_ref="record")
    return [
        completed_message(completed, app_id="worker"),
        scheduled_message(scheduled, pool="default", traceparent=None),
    ]


def _unusable() -> list[Outgoing]:
    """Return what each service puts to the dead letters."""
    return [replace(message, body=b"{}") for message in _unknown()]


async def _lose(amqp_url: str, *queues: str, delete: bool) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await (queue.delete(if_unused=False, if_empty=False) if delete else queue.purge())


async def _all_there(amqp_url: str, *queues: str) -> bool:
    async with await aio_pika.connect(amqp_url) as connection:
        for name in queues:
            channel = await connection.channel()
            try:
                await channel.declare_queue(name, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return False
    return True
