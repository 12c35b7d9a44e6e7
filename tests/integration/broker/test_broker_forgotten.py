"""A subscription whose consumer the broker has forgotten is served again; nobody outside notices."""

import asyncio

from aio_pika.abc import AbstractChannel

from tests.support.brokers import bodies, declares, message, numbered, running, take, until
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher

QUIET_SECONDS = 0.3
SOON_QUIET = BrokerTimeouts(quiet_seconds=QUIET_SECONDS)


async def test_what_was_quiet_for_long_and_holds_nothing_starts_anew_and_is_ready_all_the_time(
    amqp_url: str,
) -> None:
    starts = 0

    async def declare(channel: AbstractChannel) -> None:
        nonlocal starts
        starts += 1
        await declares("q")(channel)

    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con", timeouts=SOON_QUIET)
    queue = consumer.subscribe("q", prefetch=10, declare=declare)
    async with running(publisher, consumer):
        ready = True

        async def watch() -> None:
            nonlocal ready
            while True:
                ready = ready and consumer.connected and consumer.last_error is None
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch(), name="watch")
        await until(lambda: starts == 3)
        watching.cancel()
        assert ready
        await publisher.publish(numbered("q", 1))
        (held,) = await take(queue, 1)
        before = starts
        await asyncio.sleep(QUIET_SECONDS * 4)
        assert starts == before, "what is unsettled must not be delivered again"
        queue.ack([held])
        await until(lambda: starts > before)
        await publisher.publish([message("q", b"after")])
        assert bodies(await take(queue, 1)) == [b"after"]


async def test_a_consumer_that_the_broker_forgot_is_replaced(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con", timeouts=SOON_QUIET)
    queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 1))
        (first,) = await take(queue, 1)
        # As if the broker had done it, without a word to the subscription.
        await first.channel.basic_cancel(first.consumer)
        queue.ack([first])
        await publisher.publish([message("q", b"after")])
        assert bodies(await take(queue, 1)) == [b"after"]
