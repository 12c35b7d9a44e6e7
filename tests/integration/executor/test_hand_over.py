"""What was granted is offered, whatever becomes of the next grant; nobody waits for the rest of a line."""

import asyncio

from tests.support.protocol import Protocol
from tests.support.traffic import drain_queue, publishing, until
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import pool_queue
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.envelopes import cancel_message
from turnstile.common.messages import ExecutionCancel
from turnstile.executor.decisions import Grant, Grants
from turnstile.executor.hand_over import HandOver
from turnstile.executor.queue_manager import QueueManager


async def test_an_offer_is_made_though_the_database_leaves_before_the_next_grant(amqp_url: str) -> None:
    never_opened = Database("postgresql://nobody@127.0.0.1:1/none", application_name="test")
    grant = Grant(execution_id=ExecutionId(7), attempt=Attempt(1), action_ref="a", pool="default")
    async with publishing(amqp_url) as publisher:
        hand_over = HandOver(publisher, QueueManager(never_opened), "quorum", publisher)
        await hand_over.offer(Grants(granted=[grant], more_queue_ids=[QueueId(1)]))
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == "7"


async def test_whoever_grants_the_first_of_a_long_line_does_not_wait_for_its_end(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.put("a", max_concurrent=0)
    ids = await protocol.submit("a", 2500)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    queue_id = await protocol.connection.fetchval("SELECT id FROM action_queue")
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        hand_over = HandOver(publisher, QueueManager(database), "quorum", publisher)
        await hand_over.offer(Grants(granted=[], more_queue_ids=[queue_id]))
        assert await protocol.connection.fetchval("SELECT depth FROM action_queue") == 2500

        async def all_granted() -> bool:
            return bool(await protocol.connection.fetchval("SELECT depth = 0 FROM action_queue"))

        granting = asyncio.create_task(hand_over.run(), name="hand-over")
        await until(all_granted, "all are granted")
        offered = await drain_queue(amqp_url, pool_queue("default"), 2500)
        granting.cancel()
        await asyncio.gather(granting, return_exceptions=True)
    await database.close()
    assert [int(each.correlation_id or 0) for each in offered] == ids


async def test_what_waits_for_the_broker_behind_the_back_of_its_caller_is_bounded() -> None:
    never_opened = Database("postgresql://nobody@127.0.0.1:1/none", application_name="test")
    never_connected = Publisher("amqp://nobody@127.0.0.1:1/", name="test")
    hand_over = HandOver(never_connected, QueueManager(never_opened), "quorum", never_connected)
    stop = cancel_message(ExecutionCancel(execution_id=1, attempt=1), worker_id="w")

    def leave(count: int) -> bool:
        return hand_over.tell_later(hand_over.tell([stop] * count), count=count)

    assert [leave(4000), leave(2000), leave(1000), leave(1)] == [True, False, True, False]
    await hand_over.finish_telling(0.1)
    await asyncio.sleep(0)
    assert leave(6000), "one batch of any size is told, where nothing waits before it"
    await hand_over.finish_telling(0.1)
