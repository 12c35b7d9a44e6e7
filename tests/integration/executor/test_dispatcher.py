"""Grants are offered though the next grant fails, without waiting for the rest of the queue."""

import asyncio

from tests.support.protocol import Protocol
from tests.support.traffic import drain_queue, publishing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import pool_queue
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.envelopes import cancel_message
from turnstile.common.messages import ExecutionCancel
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.results import Grant, Grants
from turnstile.executor.slot_grants import QueueManager


async def test_an_offer_is_published_though_the_database_fails_before_the_next_grant(amqp_url: str) -> None:
    never_opened = Database("postgresql://nobody@127.0.0.1:1/none", application_name="test")
    grant = Grant(execution_id=ExecutionId(7), attempt=Attempt(1), action_ref="a", pool="default")
    async with publishing(amqp_url) as publisher:
        dispatcher = Dispatcher(publisher, QueueManager(never_opened), "quorum", publisher)
        await dispatcher.dispatch(Grants(granted=[grant], more_queue_ids=[QueueId(1)]))
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == "7"


async def test_the_caller_of_the_first_grant_does_not_wait_for_the_rest_of_the_queue(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.put("a", max_concurrent=0)
    ids = await protocol.submit("a", 1200)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    queue_id = await protocol.connection.fetchval("SELECT id FROM action_queue")
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        dispatcher = Dispatcher(publisher, QueueManager(database), "quorum", publisher)
        await dispatcher.dispatch(Grants(granted=[], more_queue_ids=[queue_id]))
        assert await protocol.connection.fetchval("SELECT depth FROM turnstile.current_queue") == 1200
        granting = asyncio.create_task(dispatcher.run(), name="dispatcher")
        await protocol.until("SELECT depth = 0 FROM turnstile.current_queue")
        offered = await drain_queue(amqp_url, pool_queue("default"), 1200)
        granting.cancel()
        await asyncio.gather(granting, return_exceptions=True)
    await database.close()
    assert [int(each.correlation_id or 0) for each in offered] == ids


async def test_messages_published_in_the_background_are_bounded() -> None:
    never_opened = Database("postgresql://nobody@127.0.0.1:1/none", application_name="test")
    never_connected = Publisher("amqp://nobody@127.0.0.1:1/", name="test")
    dispatcher = Dispatcher(never_connected, QueueManager(never_opened), "quorum", never_connected)
    stop = cancel_message(ExecutionCancel(execution_id=1, attempt=1), worker_id="w")

    def leave(count: int) -> bool:
        return dispatcher.in_background(dispatcher.publish([stop] * count), count=count)

    assert [leave(4000), leave(2000), leave(1000), leave(1)] == [True, False, True, False]
    await dispatcher.finish(0.1)
    await asyncio.sleep(0)
    assert leave(6000), "one batch of any size is published where nothing waits before it"
    await dispatcher.finish(0.1)
