"""Whether what the broker puts into a queue now comes here: the proof on which a cut-off worker runs on."""

import asyncio
import time

from tests.support.brokers import DEADLINE_SECONDS, IMPATIENT, bare_channel, declares, running, until
from tests.support.cable import cable_to
from turnstile.common.broker.consumer import ConsumerConnection

_DECLARE = declares("q", {"x-queue-type": "classic"})


async def test_who_consumes_is_reached_and_who_does_not_is_not(amqp_url: str) -> None:
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=10, declare=_DECLARE)
    assert not await consumer.reaches(queue), "not connected yet"
    async with running(consumer):
        assert await consumer.reaches(queue)
        await queue.pause()
        assert not await consumer.reaches(queue)
        await queue.resume()
        assert await consumer.reaches(queue)
    assert not await consumer.reaches(queue)


async def test_with_a_second_consumer_nobody_knows_who_is_reached(amqp_url: str) -> None:
    consumer = ConsumerConnection(amqp_url, name="con")
    left_over = ConsumerConnection(amqp_url, name="left-over")
    queue = consumer.subscribe("q", prefetch=10, declare=_DECLARE)
    left_over.subscribe("q", prefetch=10, declare=_DECLARE)
    async with running(consumer):
        async with running(left_over):
            assert not await consumer.reaches(queue)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await consumer.reaches(queue):
                await asyncio.sleep(0.01)


async def test_a_deleted_queue_and_a_silent_broker_prove_nothing_and_the_question_ends_in_time(
    amqp_url: str,
) -> None:
    async with cable_to(amqp_url) as cable, bare_channel(amqp_url) as channel:
        consumer = ConsumerConnection(cable.url, name="con", timeouts=IMPATIENT)
        deleted = consumer.subscribe("deleted", prefetch=10)
        await channel.queue_declare("deleted")
        queue = consumer.subscribe("q", prefetch=10, declare=_DECLARE)
        async with running(consumer):
            await until(lambda: deleted.ready and queue.ready)
            assert await consumer.reaches(deleted)
            await channel.queue_delete("deleted")
            assert not await consumer.reaches(deleted)
            assert await consumer.reaches(queue)
            cable.freeze()
            asked_at = time.monotonic()
            assert not await consumer.reaches(queue)
            assert time.monotonic() - asked_at < 3 * IMPATIENT.rpc_seconds
            cable.thaw()
