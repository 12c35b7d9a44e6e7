"""Messages that carry several offers: slots stay in use, nothing is held that cannot run, nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from tests.support.brokers import declares, publishing, running, until_ready
from tests.support.proxy import proxy_to
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.envelopes import scheduled_message
from turnstile.worker.attempt import Attempts, Disposition
from turnstile.worker.consumer import Concurrency, PoolConsumer
from turnstile.worker.gateway import Gateway
from turnstile.worker.lease import Lease
from turnstile.worker.protocol import Offer, Verdict
from turnstile.worker.runners.registry import Runners


class ScriptedAttempts(Attempts):
    """Attempts that end when the test ends them."""

    def __init__(self, refused: Sequence[int]) -> None:
        self.draining = False
        self.started: list[int] = []
        self._refused = refused
        self._ends: dict[int, asyncio.Future[Disposition]] = {}

    @property
    def running(self) -> int:
        return len(self._ends)

    async def run(self, offer: Offer, delivery: Delivery) -> Disposition:
        del delivery
        number = offer.execution_id
        if number in self._refused:
            return Disposition.ACKNOWLEDGE
        self.started.append(number)
        self._ends[number] = asyncio.get_running_loop().create_future()
        try:
            return await self._ends[number]
        finally:
            del self._ends[number]

    def end(self, *numbers: int, disposition: Disposition = Disposition.ACKNOWLEDGE) -> None:
        for number in numbers:
            self._ends[number].set_result(disposition)

    def end_all(self) -> None:
        self.end(*self._ends)

    async def until_started(self, *numbers: int) -> None:
        await until(lambda: sorted(self.started) == sorted(numbers), f"{self.started} are {numbers}")


class Worker:
    """One worker's consumer, with its scripted attempts."""

    attempts: ScriptedAttempts

    def __init__(self, url: str, concurrency: int, attempts: Attempts, acknowledge_after: float) -> None:
        self.connection = ConsumerConnection(url, name="worker")
        self.subscription: Subscription = self.connection.subscribe(
            "q", prefetch=concurrency, declare=declares("q")
        )
        self.pool = PoolConsumer(
            self.subscription,
            attempts,
            Concurrency(concurrency),
            acknowledge_after_seconds=acknowledge_after,
        )


@asynccontextmanager
async def serving(
    url: str,
    concurrency: int,
    *,
    refused: Sequence[int] = (),
    acknowledge_after: float = 3600,
    attempts: Attempts | None = None,
) -> AsyncIterator[Worker]:
    """A worker that takes offers from queue `q`; `refused`: executions whose claim is refused."""
    scripted = ScriptedAttempts(refused)
    worker = Worker(url, concurrency, attempts or scripted, acknowledge_after)
    worker.attempts = scripted
    async with running(worker.connection):
        consuming = asyncio.create_task(worker.pool.run(), name="pool")
        try:
            yield worker
        finally:
            consuming.cancel()
            await asyncio.wait({consuming})


def pack(*numbers: int) -> Outgoing:
    first, *more = numbers
    message = scheduled_message(
        first, 1, "a", pool="default", traceparent=None, more=[(number, 1, "a") for number in more]
    )
    message.exchange, message.routing_key, message.direct_address = "", "q", None
    return message


async def publish(url: str, *messages: Outgoing) -> None:
    async with publishing(url) as publisher:
        await publisher.publish(messages)


async def test_a_message_is_acknowledged_after_the_last_of_its_offers(amqp_url: str) -> None:
    async with serving(amqp_url, 4) as worker:
        await publish(amqp_url, pack(1, 2, 3))
        await worker.attempts.until_started(1, 2, 3)
        worker.attempts.end(1, 3)
        await until(lambda: worker.attempts.running == 1)
    # The worker is gone: the message that was not acknowledged comes back.
    await until_ready(amqp_url, "q", 1)
    async with serving(amqp_url, 4, refused=[1, 3]) as worker:
        await worker.attempts.until_started(2)
        worker.attempts.end(2)
        await until(lambda: not worker.attempts.running)
        await publish(amqp_url, pack(4))
        await worker.attempts.until_started(2, 4)
        worker.attempts.end(4)
        await until(lambda: not worker.attempts.running)
    await until_ready(amqp_url, "q", 0)


async def test_what_a_worker_cannot_take_goes_back_and_another_worker_runs_it(amqp_url: str) -> None:
    async with serving(amqp_url, 4) as first:
        await publish(amqp_url, pack(1, 2, 3), pack(4, 5, 6), pack(7, 8, 9))
        await first.attempts.until_started(1, 2, 3, 4)
        await until_ready(amqp_url, "q", 2)
        async with serving(amqp_url, 8, refused=[4]) as second:
            await second.attempts.until_started(5, 6, 7, 8, 9)
            first.attempts.end_all()
            second.attempts.end_all()
            await until(lambda: not (first.attempts.running or second.attempts.running))
        assert sorted(first.attempts.started) == [1, 2, 3, 4]
    await until_ready(amqp_url, "q", 0)


async def test_single_offers_after_packs_use_every_slot(amqp_url: str) -> None:
    async with serving(amqp_url, 8) as worker:
        await publish(amqp_url, *(pack(*range(first, first + 4)) for first in range(1, 33, 4)))
        for ended in range(0, 32, 8):
            await until(lambda: worker.attempts.running == 8)
            # The bound is lowered to the two packs that run.
            await until_ready(amqp_url, "q", 6 - ended // 4)
            worker.attempts.end_all()
        await until(lambda: not worker.attempts.running)
        await publish(amqp_url, *(pack(number) for number in range(101, 110)))
        await until(lambda: worker.attempts.running == 8)
        await until_ready(amqp_url, "q", 1)
        assert sorted(worker.attempts.started)[:32] == [*range(1, 33)]


async def test_packs_after_single_offers_are_left_to_workers_with_free_slots(amqp_url: str) -> None:
    async with serving(amqp_url, 8) as worker:
        await publish(amqp_url, *(pack(number) for number in range(1, 9)))
        await until(lambda: worker.attempts.running == 8)
        worker.attempts.end_all()
        await until(lambda: not worker.attempts.running)
        await publish(amqp_url, *(pack(*range(first, first + 4)) for first in range(11, 43, 4)))
        await until(lambda: worker.attempts.running == 8)
        await until_ready(amqp_url, "q", 6)
        assert sorted(worker.attempts.started)[8:] == [*range(11, 19)]


async def test_slots_of_a_pack_whose_other_offers_run_on_are_used_again(amqp_url: str) -> None:
    async with serving(amqp_url, 4) as worker:
        await publish(amqp_url, pack(1, 2, 3, 4), pack(5, 6, 7, 8), pack(9))
        await worker.attempts.until_started(1, 2, 3, 4)
        await until_ready(amqp_url, "q", 2)
        worker.attempts.end(2, 3, 4)
        await worker.attempts.until_started(1, 2, 3, 4, 5, 6, 7)
        worker.attempts.end(5)
        await worker.attempts.until_started(*range(1, 9))
        worker.attempts.end(6, 7, 8)
        await worker.attempts.until_started(*range(1, 10))
        worker.attempts.end(1, 9)
        await until(lambda: not worker.attempts.running)
    await until_ready(amqp_url, "q", 0)


async def test_a_redelivered_pack_starts_nothing_that_runs_or_has_ended_here(amqp_url: str) -> None:
    async with proxy_to(amqp_url) as proxy, serving(proxy.url, 4) as worker:
        await publish(amqp_url, pack(1, 2, 3))
        await worker.attempts.until_started(1, 2, 3)
        worker.attempts.end(1)
        for _ in range(2):
            proxy.cut()
            await until(lambda: not worker.connection.connected)
            await until(lambda: worker.connection.connected)
            await until_ready(amqp_url, "q", 0)
        await publish(amqp_url, pack(4, 5), pack(6, 7))
        await until(lambda: worker.attempts.running == 4)
        await until_ready(amqp_url, "q", 1)
        worker.attempts.end_all()
        await worker.attempts.until_started(*range(1, 8))
        worker.attempts.end_all()
        await until(lambda: not worker.attempts.running)
    await until_ready(amqp_url, "q", 0)


async def test_a_pack_of_long_runs_is_acknowledged_early_and_keeps_its_slots(amqp_url: str) -> None:
    async with serving(amqp_url, 4, acknowledge_after=0.2) as worker:
        await publish(amqp_url, pack(1, 2, 3))
        await worker.attempts.until_started(1, 2, 3)
        worker.attempts.end(1)
        await asyncio.sleep(0.6)
        await publish(amqp_url, pack(4), pack(5), pack(6))
        await until(lambda: worker.attempts.running == 4)
        await until_ready(amqp_url, "q", 1)
        worker.attempts.end(2)
        await worker.attempts.until_started(*range(1, 7))
    # What was acknowledged early does not come back; the three others may have been, or do.
    async with serving(amqp_url, 4) as worker:
        await asyncio.sleep(0.2)
        assert not {1, 2, 3} & {*worker.attempts.started}


async def test_a_drain_returns_a_pack_with_waiting_offers_and_waits_for_those_that_run(amqp_url: str) -> None:
    async with serving(amqp_url, 2) as worker:
        await publish(amqp_url, pack(1, 2, 3))
        await worker.attempts.until_started(1, 2)
        worker.attempts.draining = True
        draining = asyncio.create_task(worker.pool.drain(), name="drain")
        async with serving(amqp_url, 2, refused=[1, 2]) as other:
            await other.attempts.until_started(3)
            assert not draining.done()
            worker.attempts.end(1, 2)
            await asyncio.wait_for(draining, 10)
            other.attempts.end(3)
            await until(lambda: not other.attempts.running)
    await until_ready(amqp_url, "q", 0)


async def test_an_offer_that_must_go_back_takes_its_pack_along_and_the_others_run_on(amqp_url: str) -> None:
    async with serving(amqp_url, 4) as worker:
        await publish(amqp_url, pack(1, 2, 3))
        await worker.attempts.until_started(1, 2, 3)
        worker.attempts.end(2, disposition=Disposition.REQUEUE)
        await worker.attempts.until_started(1, 2, 2, 3)
        worker.attempts.end_all()
        await until(lambda: not worker.attempts.running)
    await until_ready(amqp_url, "q", 0)


class ScriptedGateway(Gateway):
    """Answers claims as told, and keeps what is published."""

    def __init__(self, verdicts: Mapping[int, Verdict]) -> None:
        self.lease = CertainLease()
        self.published: list[Outgoing] = []
        self.letters: list[Outgoing] = []
        self._verdicts = verdicts

    async def claim(self, offer: Offer, *, give_up: Callable[[], bool]) -> Verdict:
        del give_up
        return self._verdicts[offer.execution_id]

    async def publish(self, message: Outgoing) -> None:
        self.published.append(message)

    async def dead_letter(self, message: Outgoing) -> None:
        self.letters.append(message)


class CertainLease(Lease):
    def __init__(self) -> None:
        self.lost_at = None

    async def certain(self) -> bool:
        return True


async def test_each_offer_of_a_pack_is_postponed_passed_on_or_dropped_by_its_own_verdict(
    amqp_url: str,
) -> None:
    verdicts = {1: Verdict.STALE, 2: Verdict.UNKNOWN, 3: Verdict.NOT_SERVED}
    gateway = ScriptedGateway(verdicts)
    attempts = Attempts(gateway, cast("Runners", None), event_result_max_bytes=1)
    async with serving(amqp_url, 4, attempts=attempts):
        await publish(amqp_url, pack(1, 2, 3))
        await until(lambda: len(gateway.published) == 2)
        await until(lambda: not attempts.count)
    await until_ready(amqp_url, "q", 0)
    assert sorted(message.body for message in gateway.published) == [pack(2).body, pack(3).body]
    assert {message.correlation_id for message in gateway.published} == {"2", "3"}
    assert attempts.not_applied == {"stale": 1}


async def test_a_pack_that_cannot_be_read_is_dead_lettered_as_a_whole(amqp_url: str) -> None:
    gateway = ScriptedGateway({})
    attempts = Attempts(gateway, cast("Runners", None), event_result_max_bytes=1)
    invalid = [pack(1) for _ in range(4)]
    for message, more in zip(invalid, ("1", "[1]", '[{"execution_id": 2}]', "null"), strict=True):
        message.body = message.body[:-1] + f',"more":{more}}}'.encode()
    async with serving(amqp_url, 4, attempts=attempts):
        await publish(amqp_url, *invalid)
        await until(lambda: len(gateway.letters) == 4)
    await until_ready(amqp_url, "q", 0)
    assert {letter.body for letter in gateway.letters} == {message.body for message in invalid}
