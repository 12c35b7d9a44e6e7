"""A batch that the database refuses or has no time for is divided: the bad one is put aside, others pass."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.protocol import Protocol
from tests.support.traffic import cancel_request, drain_queue, publishing, request, submit, until
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTERS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_REQUESTS,
    declare_executor,
    pool_queue,
)
from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import ERROR_CODE_HEADER, ERROR_HEADER, slot_message
from turnstile.executor.cancelling import Canceller
from turnstile.executor.completion_listener import CompletionListener
from turnstile.executor.early_cancels import EarlyCancels
from turnstile.executor.hand_over import HandOver
from turnstile.executor.intake import Listener, take_in
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.request_listener import RequestListener

_SLOW_WHERE_IT_SAYS_SO = """
CREATE FUNCTION sleep_if_slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.parameters ? 'slow' THEN PERFORM pg_sleep(60); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON execution FOR EACH ROW EXECUTE FUNCTION sleep_if_slow();
"""
_BAD_SLOT = """
CREATE FUNCTION refuse_bad() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.execution_id = {bad} THEN RAISE check_violation USING MESSAGE = 'this slot is bad'; END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER bad BEFORE DELETE ON slot FOR EACH ROW EXECUTE FUNCTION refuse_bad();
"""
_NO_CANCELS = "ALTER FUNCTION turnstile.cancel RENAME TO cancel_kept"
_CANCELS_AGAIN = "ALTER FUNCTION turnstile.cancel_kept RENAME TO cancel"


@dataclass(kw_only=True)
class _Executor:
    """What takes messages in, without the service around it."""

    database_url: str
    amqp_url: str
    stack: AsyncExitStack
    command_seconds: float = 10.0

    async def take_in(self, queue: str) -> None:
        """Begin to take in from this queue."""
        enter = self.stack.enter_async_context
        database = Database(
            self.database_url,
            application_name="test",
            timeouts=DatabaseTimeouts(command_seconds=self.command_seconds),
        )
        await database.open()
        self.stack.push_async_callback(database.close)
        publisher = await enter(publishing(self.amqp_url))
        manager = QueueManager(database)
        strangers = Publisher(self.amqp_url, name="strangers", declare=declare_executor)
        hand_over = HandOver(publisher, manager, "quorum", strangers)
        canceller = Canceller(manager)
        early = EarlyCancels(database, canceller, hand_over)
        await hand_over.prepare(["default"])
        listeners: dict[str, Listener[Any]] = {
            EXECUTOR_REQUESTS: RequestListener(
                manager, canceller, early, hand_over, parameters_bytes_max=262_144
            ),
            EXECUTOR_COMPLETIONS: CompletionListener(manager, hand_over, on_callbacks=lambda: None),
        }
        consumers = ConsumerConnection(self.amqp_url, name="test", timeouts=BrokerTimeouts())
        subscription = consumers.subscribe(queue, prefetch=100, declare=declare_executor)
        intake = take_in(
            subscription, listeners[queue], batch_max=50, stop=asyncio.Event(), courier=hand_over.courier
        )
        await enter(_in_background(hand_over.courier.run()))
        await enter(_in_background(consumers.run()))
        await enter(_in_background(intake))


@asynccontextmanager
async def _in_background(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def executor(database_url: str, amqp_url: str) -> AsyncIterator[_Executor]:
    async with AsyncExitStack() as stack:
        yield _Executor(database_url=database_url, amqp_url=amqp_url, stack=stack)


def _are(protocol: Protocol, count: int) -> Callable[[], Awaitable[bool]]:
    async def there_are() -> bool:
        return bool(await protocol.connection.fetchval("SELECT count(*) = $1 FROM execution", count))

    return there_are


async def test_a_request_that_the_database_has_no_time_for_is_put_aside_and_the_others_keep_their_order(
    protocol: Protocol, amqp_url: str, executor: _Executor
) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.connection.execute(_SLOW_WHERE_IT_SAYS_SO)
    bodies = [{"action_ref": "a", "parameters": {"slow" if n == 5 else "number": n}} for n in range(12)]
    await submit(amqp_url, bodies)
    executor.command_seconds = 0.4
    await executor.take_in(EXECUTOR_REQUESTS)
    await until(_are(protocol, 11), "all but the slow one are admitted")
    rows = await protocol.connection.fetch(
        "SELECT parameters->>'number' AS number FROM execution ORDER BY id"
    )
    assert [int(row["number"]) for row in rows] == [n for n in range(12) if n != 5]
    (letter,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
    assert letter.headers[ERROR_CODE_HEADER] == "unavailable"
    assert "not finished within 0.4 s, 3 times" in str(letter.headers[ERROR_HEADER])


async def test_grants_are_offered_though_the_cancels_of_the_same_batch_fail(
    protocol: Protocol, amqp_url: str, executor: _Executor
) -> None:
    await protocol.put("a", max_concurrent=1)
    (waiting,) = (await protocol.submit("a", 2))[1:]
    await protocol.put("b", max_concurrent=1)
    await protocol.connection.execute(_NO_CANCELS)
    async with publishing(amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": waiting}), request({"action_ref": "b"})])
    await executor.take_in(EXECUTOR_REQUESTS)
    (offer,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    ref = await protocol.connection.fetchval(
        "SELECT ref FROM action a JOIN execution e ON e.action_id = a.id WHERE e.id = $1",
        int(offer.correlation_id or 0),
    )
    assert ref == "b"
    assert await protocol.status(waiting) == "queued"
    await protocol.connection.execute(_CANCELS_AGAIN)

    async def is_cancelled() -> bool:
        return await protocol.status(waiting) == "cancelled"

    await until(is_cancelled, "the cancel is repeated until it is done")
    assert await protocol.connection.fetchval("SELECT count(*) FROM execution") == 3


async def test_a_completion_that_the_database_refuses_is_put_aside_and_the_others_settle(
    protocol: Protocol, amqp_url: str, executor: _Executor
) -> None:
    await protocol.put("a", max_concurrent=8)
    ids = await protocol.submit("a", 8)
    await protocol.run(*ids)
    await protocol.connection.execute(_BAD_SLOT.format(bad=ids[3]))
    messages = [slot_message(each, 1, "a", Status.COMPLETED) for each in ids]
    async with publishing(amqp_url) as publisher:
        await publisher.publish(messages)
    await executor.take_in(EXECUTOR_COMPLETIONS)
    (letter,) = await drain_queue(amqp_url, DEAD_LETTERS, 1)
    assert letter.correlation_id == str(ids[3])
    assert "this slot is bad" in str(letter.headers[ERROR_HEADER])

    async def others_are_settled() -> bool:
        return [r["execution_id"] for r in await protocol.connection.fetch("SELECT * FROM slot")] == [ids[3]]

    await until(others_are_settled, "all other slots are free")
