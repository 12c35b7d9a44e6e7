"""The broker itself in trouble: an alarm, silence, a restart. On a server of the test's own."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.brokers import IMPATIENT, bodies, declares, message, running, take, until
from turnstile.common.broker.connection import BrokerTimeouts, BrokerUnavailable
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers import LocalServers, RabbitServer

CONFIRMED = Publication.CONFIRMED


async def test_an_alarm_blocks_publishers_only_and_only_while_it_lasts(
    own_servers: Callable[[], LocalServers],
) -> None:
    broker = (await asyncio.to_thread(own_servers)).rabbitmq
    publisher = Publisher(broker.url(), name="pub", declare=declares("q"), timeouts=IMPATIENT)
    consumer = ConsumerConnection(broker.url(), name="con")
    queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    async with running(publisher, consumer):
        assert await publisher.publish([message("q", b"before")]) == [CONFIRMED]
        await asyncio.to_thread(broker.ctl, "set_vm_memory_high_watermark", "0.000001")
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            await publisher.publish([message("q", b"in flight")])
        assert publisher.connected
        assert publisher.blocked
        with pytest.raises(BrokerUnavailable, match="publishing is blocked"):
            await publisher.publish([message("q", b"never sent")])
        publisher.announce([message("q", b"news", mandatory=False, persistent=False)])
        assert publisher.announcements_dropped == 1

        before = await take(queue, 1)
        queue.ack(before)
        late = consumer.subscribe("q2", prefetch=10, declare=declares("q2"))
        await until(lambda: late.ready)

        await asyncio.to_thread(broker.ctl, "set_vm_memory_high_watermark", "0.4")
        await until(lambda: not publisher.blocked)
        assert await publisher.publish([message("q", b"after")]) == [CONFIRMED]
        # What timed out was on its way all the time: this is why a repeat must be harmless.
        assert bodies(before + await take(queue, 2)) == [b"before", b"in flight", b"after"]


@pytest.mark.whole
async def test_a_silent_broker_is_given_up_and_a_killed_one_loses_nothing_confirmed(
    own_servers: Callable[[], LocalServers],
) -> None:
    broker = (await asyncio.to_thread(own_servers)).rabbitmq
    publisher = Publisher(broker.url(), name="pub", declare=declares("survivor"), timeouts=IMPATIENT)
    consumer = ConsumerConnection(broker.url(), name="con", timeouts=BrokerTimeouts(heartbeat_seconds=1))
    async with running(publisher, consumer):
        assert (
            await publisher.publish([message("survivor", b"1"), message("survivor", b"2")]) == [CONFIRMED] * 2
        )
        await until(lambda: _knows(broker, "survivor"))
        await asyncio.to_thread(broker.pause)
        with pytest.raises(BrokerUnavailable):
            await publisher.publish([message("survivor", b"lost")])
        await until(lambda: not publisher.connected and not consumer.connected)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.restart)
        await until(lambda: publisher.connected and consumer.connected)
        await _publish_until_confirmed(publisher, message("survivor", b"3"))
        queue = consumer.subscribe("survivor", prefetch=100)
        seen = bodies(await take(queue, 3))
        # A repeat after an unknown outcome may double a message; the confirmed ones are there all the same.
        assert seen[:2] == [b"1", b"2"]
        assert set(seen[2:]) <= {b"lost", b"3"}


def _knows(broker: RabbitServer, queue: str) -> bool:
    """Whether the broker saved its list of quorum queues: before that, a kill costs the whole queue."""
    saved = broker.folder.glob("data/*/quorum/*/names.dets")
    return any(queue.encode() in names.read_bytes() for names in saved)


async def _publish_until_confirmed(publisher: Publisher, outgoing: Outgoing) -> None:
    """Do as every caller does: repeat. A quorum queue needs a moment to elect its leader after a crash."""
    async with asyncio.timeout(60):
        while True:
            try:
                assert await publisher.publish([outgoing]) == [CONFIRMED]
            except BrokerUnavailable:
                continue
            return
