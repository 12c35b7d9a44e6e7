"""A batch that the database refuses or times out over is divided; blocked deliveries delay no others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.brokers import declares, message, running
from tests.support.protocol import Protocol
from tests.support.traffic import cancel_request, drain_queue, publishing, request, submit, until
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.prefetch import ByteBounds
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
from turnstile.executor.batch_consumer import BatchHandler, Processed, consume_batches
from turnstile.executor.cancellation import Canceller, EarlyCancels
from turnstile.executor.completion_listener import CompletionListener
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.request_listener import RequestListener
from turnstile.executor.slot_grants import QueueManager

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
        replies = Publisher(self.amqp_url, name="replies", declare=declare_executor)
        dispatcher = Dispatcher(publisher, manager, "quorum", replies)
        canceller = Canceller(manager)
        early = EarlyCancels(database, canceller, dispatcher)
        await dispatcher.declare_pools(["default"])
        listeners: dict[str, BatchHandler[Any]] = {
            EXECUTOR_REQUESTS: RequestListener(
                manager, canceller, early, dispatcher, parameters_bytes_max=262_144
            ),
            EXECUTOR_COMPLETIONS: CompletionListener(manager, dispatcher, on_callbacks=lambda: None),
        }
        consumers = ConsumerConnection(self.amqp_url, name="test", timeouts=BrokerTimeouts())
        subscription = consumers.subscribe(queue, prefetch=100, declare=declare_executor)
        consuming = consume_batches(
            subscription,
            listeners[queue],
            batch_max=50,
            stop=asyncio.Event(),
            best_effort=dispatcher.best_effort,
        )
        await enter(_in_background(dispatcher.best_effort.run()))
        await enter(_in_background(consumers.run()))
        await enter(_in_background(consuming))


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


async def test_a_request_that_times_out_is_given_up_and_the_others_keep_their_order(
    protocol: Protocol, amqp_url: str, executor: _Executor
) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.connection.execute(_SLOW_WHERE_IT_SAYS_SO)
    bodies = [{"action_ref": "a", "parameters": {"slow" if n == 5 else "number": n}} for n in range(12)]
    await submit(amqp_url, bodies)
    executor.command_seconds = 0.4
    await executor.take_in(EXECUTOR_REQUESTS)
    await protocol.until("SELECT count(*) = 11 FROM execution")
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
    # The cancel is repeated until it succeeds.
    await protocol.until("SELECT status = 'cancelled' FROM execution WHERE id = $1", waiting)
    assert await protocol.connection.fetchval("SELECT count(*) FROM execution") == 3


async def test_a_completion_that_the_database_refuses_is_dead_lettered_and_the_others_settle(
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
    await protocol.until("SELECT array_agg(execution_id) = ARRAY[$1::bigint] FROM slot", ids[3])


@dataclass(slots=True)
class Waiting:
    """A listener for which messages that begin with `held` wait until they are `free`."""

    free: bool = False
    decided: list[bytes] = field(default_factory=list)

    async def process(self, deliveries: Sequence[Delivery]) -> Processed:
        blocked = [each for each in deliveries if each.body.startswith(b"held") and not self.free]
        self.decided += [each.body.strip() for each in deliveries if each not in blocked]
        return Processed(blocked=blocked)

    def give_up(self, delivery: Delivery, reason: str) -> Processed:
        raise AssertionError(f"{delivery}: {reason}")

    async def publish(self, _: Processed) -> None:
        pass


async def test_deliveries_behind_blocked_ones_arrive_though_the_byte_bound_is_reached(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    bounds = ByteBounds(held=1000, one=1000)
    queue = consumer.subscribe("q", prefetch=100, declare=declares("q"), byte_bounds=bounds)
    listener, stop = Waiting(), asyncio.Event()
    bodies = [b"held 1", b"held 2", *(f"other {n}".encode() for n in range(30))]
    async with running(publisher, consumer), asyncio.TaskGroup() as tasks:
        await publisher.publish([message("q", body.ljust(200)) for body in bodies])
        tasks.create_task(consume_batches(queue, listener, batch_max=10, stop=stop), name="take-in")
        await until(lambda: len(listener.decided) >= 30)
        assert list(dict.fromkeys(listener.decided)) == bodies[2:]
        listener.free = True
        await until(lambda: {b"held 1", b"held 2"} <= set(listener.decided))
        assert listener.decided.index(b"held 1") < listener.decided.index(b"held 2")
        stop.set()
