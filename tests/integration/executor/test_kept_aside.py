"""What waits aside for a row of others keeps nobody out, also where no more bytes are taken in (P2, P9)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.brokers import declares, message, running, until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.outstanding import ByteBounds
from turnstile.common.broker.publisher import Publisher
from turnstile.executor.intake import Done, take_in


@dataclass(slots=True)
class Waiting:
    """A listener for which messages that begin with `held` wait until they are `free`."""

    free: bool = False
    decided: list[bytes] = field(default_factory=list)

    async def decide(self, deliveries: Sequence[Delivery]) -> Done:
        aside = [each for each in deliveries if each.body.startswith(b"held") and not self.free]
        self.decided += [each.body.strip() for each in deliveries if each not in aside]
        return Done(aside=aside)

    def put_aside(self, delivery: Delivery, reason: str) -> Done:
        raise AssertionError(f"{delivery}: {reason}")

    async def tell(self, _: Done) -> None:
        pass


async def test_others_come_in_behind_what_waits_aside_though_no_more_bytes_fit(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    bounds = ByteBounds(held=1000, one=1000)
    queue = consumer.subscribe("q", prefetch=100, declare=declares("q"), byte_bounds=bounds)
    listener, stop = Waiting(), asyncio.Event()
    bodies = [b"held 1", b"held 2", *(f"other {n}".encode() for n in range(30))]
    async with running(publisher, consumer), asyncio.TaskGroup() as tasks:
        await publisher.publish([message("q", body.ljust(200)) for body in bodies])
        tasks.create_task(take_in(queue, listener, batch_max=10, stop=stop), name="take-in")
        await until(lambda: len(listener.decided) >= 30)
        assert list(dict.fromkeys(listener.decided)) == bodies[2:]
        listener.free = True
        await until(lambda: {b"held 1", b"held 2"} <= set(listener.decided))
        assert listener.decided.index(b"held 1") < listener.decided.index(b"held 2")
        stop.set()
