"""What a single leader builds on: takeover of its queues in order, session queues, probes, slow listeners.

Each test is a fact about RabbitMQ. Measured with 3.10.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

from tests.support.brokers import (
    bare_channel,
    bodies,
    channel_of,
    declares,
    hanging,
    linked,
    message,
    numbered,
    numbered_bodies,
    publishing,
    ready_messages,
    running,
    settled,
    subscribed,
    take,
    until_ready,
    unused,
)
from tests.support.proxy import Flow, LinkState, proxy_to
from tests.support.service_template import DIES_WITH_US
from tests.support.traffic import until
from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerTimeouts, Declare
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.localservers import BrokerServer, RabbitServer

CONFIRMED, RETURNED, REFUSED = Publication.CONFIRMED, Publication.RETURNED, Publication.REFUSED

HELD: Final = 2000
LATER: Final = 500
HEARTBEAT_SECONDS: Final = 2
FRESH_SECONDS: Final = 0.5
"""How long a test waits for what must not arrive."""
TAKEOVER_SECONDS: Final = 15.0
"""Far above the three heartbeats after which the broker closes a silent connection at the latest."""
DELAYED_SECONDS: Final = 3.0
"""Ten times what a confirm takes beside large results on an idle machine."""

_QUORUM: Final[FieldTable] = {"x-queue-type": "quorum", "x-delivery-limit": 100}
_SINGLE: Final[FieldTable] = {**_QUORUM, "x-single-active-consumer": True}
REQUESTS: Final = "requests"
declare_requests: Final = declares(REQUESTS, _SINGLE)


def requests(start: int, stop: int) -> list[Outgoing]:
    return numbered(REQUESTS, stop)[start:]


@asynccontextmanager
async def leader(
    amqp_url: str,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    prefetch: int = HELD + LATER,
) -> AsyncIterator[Subscription]:
    """A connection of its own that consumes the requests."""
    timeouts = BrokerTimeouts(heartbeat_seconds=heartbeat_seconds, rpc_seconds=1.0)
    consumer = ConsumerConnection(amqp_url, name="leader", timeouts=timeouts)
    queue = consumer.subscribe(REQUESTS, prefetch=prefetch, declare=declare_requests)
    async with running(consumer):
        yield queue


async def receives_nothing(queue: Subscription) -> None:
    await asyncio.sleep(FRESH_SECONDS)
    assert queue.buffered == 0


def assert_all_in_order(deliveries: Sequence[Delivery], *, redelivered: int) -> None:
    assert bodies(deliveries) == numbered_bodies(*range(len(deliveries)))
    assert all(delivery.redelivered for delivery in deliveries[:redelivered])


class LeaderProcess:
    """A leader in a process of its own, which holds the first requests; it runs `_hold`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def resume(self) -> None:
        """Resume it: it acknowledges what it holds, consumes again, and prints what it receives."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self.send(signal.SIGCONT)

    async def lines(self, count: int) -> list[bytes]:
        assert self._process.stdout is not None
        async with asyncio.timeout(TAKEOVER_SECONDS):
            return [(await self._process.stdout.readline()).strip() for _ in range(count)]


@asynccontextmanager
async def leader_process(amqp_url: str) -> AsyncIterator[LeaderProcess]:
    process = await asyncio.create_subprocess_exec(
        *DIES_WITH_US,
        *(sys.executable, "-m", "tests.integration.broker.test_leader_queues", amqp_url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield LeaderProcess(process)
    finally:
        process.kill()
        await process.communicate()


async def _hold(amqp_url: str) -> None:
    async with leader(amqp_url, prefetch=HELD) as queue:
        held = await take(queue, HELD)
        print("holds", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        queue.ack(held)
        await until(lambda: not held[0].live)
        await until(lambda: queue.ready)
        print("waits", flush=True)
        while True:
            for delivery in await queue.next_batch(HELD):
                print(delivery.body.decode(), flush=True)


async def test_what_a_stopped_leader_holds_reaches_the_next_one_first_and_nothing_reaches_it_before(
    amqp_url: str,
) -> None:
    now = asyncio.get_running_loop().time
    async with publishing(amqp_url, declare=declare_requests) as publisher, leader_process(amqp_url) as old:
        await publisher.publish(requests(0, HELD))
        assert await old.lines(1) == [b"holds"]
        async with leader(amqp_url) as queue:
            await receives_nothing(queue)
            old.send(signal.SIGSTOP)
            stopped_at = now()
            await publisher.publish(requests(HELD, HELD + LATER))
            await receives_nothing(queue)
            taken = await take(queue, HELD + LATER)
            assert HEARTBEAT_SECONDS < now() - stopped_at < TAKEOVER_SECONDS
            assert_all_in_order(taken, redelivered=HELD)
            # Its late acknowledgements settle nothing, and it waits behind the new leader.
            old.resume()
            assert await old.lines(1) == [b"waits"]
            queue.ack(taken[:HELD])
            await settled(taken[0])
        assert await old.lines(LATER) == numbered_bodies(*range(HELD, HELD + LATER))


@pytest.mark.parametrize("flow", [Flow.DROP, Flow.HOLD], ids=["bytes are lost", "bytes arrive late"])
async def test_what_a_leader_behind_a_partition_holds_reaches_the_next_one_first_whatever_it_acknowledges(
    amqp_url: str, flow: Flow
) -> None:
    now = asyncio.get_running_loop().time
    async with (
        publishing(amqp_url, declare=declare_requests) as publisher,
        proxy_to(amqp_url) as proxy,
        leader(proxy.url, heartbeat_seconds=1, prefetch=HELD) as old,
        AsyncExitStack() as next_leader,
    ):
        queue = await next_leader.enter_async_context(leader(amqp_url))
        await publisher.publish(requests(0, HELD))
        held = await take(old, HELD)
        proxy.state = LinkState(up=flow, down=flow)
        parted_at = now()
        old.ack(held)
        await publisher.publish(requests(HELD, HELD + LATER))
        await receives_nothing(queue)
        taken = await take(queue, HELD + LATER)
        assert 1 < now() - parted_at < TAKEOVER_SECONDS
        assert_all_in_order(taken, redelivered=HELD)
        proxy.thaw()
        await until(lambda: not held[0].live, deadline_seconds=TAKEOVER_SECONDS)
        await next_leader.aclose()
        # None of them was settled.
        assert_all_in_order(await take(old, HELD), redelivered=HELD)


@pytest.mark.parametrize("how", ["closes", "loses"])
async def test_a_leader_that_closes_or_loses_its_connection_is_followed_at_once_and_in_order(
    amqp_url: str, how: str
) -> None:
    now = asyncio.get_running_loop().time
    async with (
        publishing(amqp_url, declare=declare_requests) as publisher,
        proxy_to(amqp_url) as proxy,
        AsyncExitStack() as exits,
    ):
        old = await exits.enter_async_context(leader(proxy.url, prefetch=HELD))
        await publisher.publish(requests(0, HELD + LATER))
        # Every second of the first ones is settled: the others keep their places.
        held = await take(old, HELD)
        old.ack(held[:LATER:2])
        await settled(held[0])
        async with leader(amqp_url) as queue:
            await receives_nothing(queue)
            began_at = now()
            if how == "loses":
                proxy.state = LinkState(refuses=True)
            else:
                await exits.aclose()
            first = await take(queue, 1)
            assert now() - began_at < HEARTBEAT_SECONDS
            left = [*range(1, LATER, 2), *range(LATER, HELD + LATER)]
            assert bodies(first + await take(queue, len(left) - 1)) == numbered_bodies(*left)


async def test_requests_given_back_keep_their_order_where_the_channel_closes_instead_of_rejecting_them(
    amqp_url: str, rabbitmq: BrokerServer
) -> None:
    async with publishing(amqp_url, declare=declare_requests) as publisher, leader(amqp_url) as queue:
        await publisher.publish(requests(0, 100))
        held = await take(queue, 100)
        await channel_of(held[0]).close()
        again = await take(queue, 100)
        assert_all_in_order(again, redelivered=100)
        queue.reject(again, requeue=True)
        rejected = await take(queue, 100)
        assert sorted(bodies(rejected)) == sorted(bodies(again))
        if rabbitmq.version().startswith("3.10."):
            # Up to 32 rejected together are requeued in order, and more in the order of a hash, for good.
            assert bodies(rejected) != bodies(again)
            await channel_of(rejected[0]).close()
            assert bodies(await take(queue, 100)) == bodies(rejected)


@asynccontextmanager
async def worker_session(amqp_url: str, name: str) -> AsyncIterator[None]:
    """The queue of one session of a worker, which ends with its connection."""
    async with bare_channel(amqp_url) as channel:
        await channel.queue_declare(name, exclusive=True, auto_delete=True)
        await channel.basic_consume(name, unused, no_ack=True)
        yield


async def test_a_cancel_to_a_session_that_is_gone_is_returned_before_it_is_confirmed(amqp_url: str) -> None:
    async with publishing(amqp_url) as publisher, worker_session(amqp_url, "new"):
        async with worker_session(amqp_url, "old"):
            assert await publisher.publish(numbered("old", 10)) == [CONFIRMED] * 10
        # A return that came after its confirm would leave that one confirmed.
        pairs = [each for _ in range(100) for each in (message("old"), message("new"))]
        assert await publisher.publish(pairs) == [RETURNED, CONFIRMED] * 100


async def test_a_probe_arrives_after_all_that_others_had_confirmed_before_also_over_a_reconnection(
    amqp_url: str,
) -> None:
    declare = declares("q", _SINGLE)
    async with (
        proxy_to(amqp_url) as proxy,
        publishing(amqp_url, declare=declare) as workers,
        subscribed(amqp_url, consumer_url=proxy.url, declare=declare, prefetch=60) as (prober, _, queue),
    ):
        for number in range(100):
            await (prober if number % 2 else workers).publish([message("q", str(number).encode())])
        taken = await take(queue, 60)
        assert_all_in_order(taken, redelivered=0)
        queue.ack(taken[:40:2])
        await settled(taken[0])
        proxy.cut()
        # Until it notices, it would hand out what the acknowledged ones had made room for.
        await until(lambda: not taken[0].live)
        assert await prober.publish([message("q", b"probe")]) == [CONFIRMED]
        left = [*range(1, 40, 2), *range(40, 100)]
        again = await take(queue, 60)
        queue.ack(again)
        again += await take(queue, len(left) + 1 - 60)
        assert bodies(again) == [*numbered_bodies(*left), b"probe"]


EVENTS: Final = "events"


def listened(*queues: str, **arguments: str | int) -> Declare:
    """Declare a topic exchange, and queues of listeners with these arguments."""

    async def declare(channel: AbstractChannel) -> None:
        events = await channel.declare_exchange(EVENTS, ExchangeType.TOPIC, durable=True)
        for name in queues:
            its_arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
            queue = await channel.declare_queue(name, durable=True, arguments={**_QUORUM, **its_arguments})
            await queue.bind(events, "#")

    return declare


async def confirm_seconds(
    channel: BulkChannel, *, seconds: float, beside: Callable[[int], None]
) -> list[float]:
    """Publish 2,000 messages/s to `q`, 20 with each write; return how long each write was unconfirmed.

    `beside` is called before each write with its number.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    delays: list[float] = []
    writes: list[asyncio.Future[list[Publication]]] = []

    def write() -> None:
        written_at = loop.time()
        written = channel.publish_all(numbered("q", 20))
        written.add_done_callback(lambda _: delays.append(loop.time() - written_at))
        writes.append(written)

    for number in range(round(seconds * 100)):
        await asyncio.sleep(began_at + number / 100 - loop.time())
        beside(number)
        write()
    async with asyncio.timeout(TAKEOVER_SECONDS):
        assert {outcome for written in writes for outcome in await written} == {CONFIRMED}
    return delays


async def test_a_full_queue_of_a_listener_refuses_its_copy_and_delays_no_other_confirm(amqp_url: str) -> None:
    answers: list[asyncio.Future[list[Publication]]] = []
    async with linked(amqp_url) as (link, channel):
        await link.declare(listened("full", x_max_length=1, x_overflow="reject-publish"))
        await link.declare(listened("other"))
        while await channel.publish_all([message("event", exchange=EVENTS)]) == [CONFIRMED]:
            pass
        had = await ready_messages(amqp_url, "other")
        delays = await confirm_seconds(
            channel,
            seconds=1.0,
            beside=lambda _: answers.append(channel.publish_all([message("event", exchange=EVENTS)])),
        )
        assert max(delays) < DELAYED_SECONDS
        assert [await answer for answer in answers] == [[REFUSED]] * len(answers)
        # Refused means that one queue did not take it: the others have.
        await until_ready(amqp_url, "other", had + len(answers))


async def test_a_queue_that_hangs_stops_every_confirm_of_a_connection_that_publishes_to_it_and_no_other(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    event = message("event", exchange=EVENTS)
    async with (
        linked(controlled_amqp_url) as (link, channel),
        linked(controlled_amqp_url) as (events, its_channel),
    ):
        await link.declare(listened("hanging"))
        neighbour = await events.open_channel(confirms=True)
        assert await its_channel.publish_all([event]) == [CONFIRMED]
        async with hanging(controlled_broker, controlled_amqp_url, "hanging"):
            # More than the broker takes from one channel and from one connection.
            unconfirmed = [its_channel.publish_all([event] * 1000)]
            delays = await confirm_seconds(channel, seconds=1.0, beside=lambda _: None)
            assert max(delays) < DELAYED_SECONDS
            unconfirmed += [each.publish_all([message("q")]) for each in (its_channel, neighbour)]
            await asyncio.wait(unconfirmed, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            assert not any(each.done() for each in unconfirmed)
        # Nothing is lost, only late.
        async with asyncio.timeout(TAKEOVER_SECONDS):
            assert {outcome for each in unconfirmed for outcome in await each} == {CONFIRMED}


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1]))
