"""Status events: while no queue is bound almost none is sent, and 100 ms after a binding all are."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from tests.support.brokers import message, publishing, running
from tests.support.listener import Listener, listening
from tests.support.traffic import until
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_STATUS_CHANGED, declare_executor
from turnstile.common.domain.states import Status
from turnstile.executor.leader.ports import StatusChanged
from turnstile.executor.leader.status_events import PROBE_SECONDS, StatusEvents

AT = datetime(2026, 1, 1, tzinfo=UTC)


def change(execution_id: int) -> StatusChanged:
    return StatusChanged(execution_id, "a", Status.RUNNING, Status.SCHEDULED, 1, AT)


class _Counted(Publisher):
    """A publisher that counts the announcements."""

    announced = 0

    def announce(self, messages: Sequence[Outgoing]) -> None:
        self.announced += len(messages)
        super().announce(messages)


@asynccontextmanager
async def events_to(amqp_url: str) -> AsyncIterator[tuple[StatusEvents, _Counted]]:
    """Yield status events on a connection of their own."""
    publisher = _Counted(amqp_url, name="pub", declare=declare_executor)
    async with running(publisher):
        yield StatusEvents(publisher), publisher


async def steadily(add: Callable[[], None], *, seconds: float) -> int:
    """Call `add` every millisecond; return how often."""
    loop = asyncio.get_running_loop()
    began_at, count = loop.time(), 0
    while loop.time() - began_at < seconds:
        add()
        count += 1
        await asyncio.sleep(0.001)
    return count


def ids_of(listener: Listener) -> list[int]:
    return [each.body["execution_id"] for each in listener.received]


async def test_while_no_queue_is_bound_few_events_are_sent_and_none_is_logged(
    amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with events_to(amqp_url) as (events, publisher):
        with caplog.at_level(logging.INFO):
            added = await steadily(lambda: events.add(map(change, range(1, 11))), seconds=1.0)
        # Ten probes a second, and the events until the broker has returned a probe: more on a busy machine.
        assert 1 <= publisher.announced <= added * 10 / 2
        assert publisher.announcements_dropped == 0
        assert publisher.connected
        assert [record for record in caplog.records if record.getMessage() != "broker_connected"] == []


async def test_every_event_from_100_ms_after_a_binding_arrives_in_order(amqp_url: str) -> None:
    async with events_to(amqp_url) as (events, _):
        numbers = iter(range(1, 1_000_000))

        def add_one() -> None:
            events.add([change(next(numbers))])

        await steadily(add_one, seconds=0.25)
        async with listening(amqp_url, EXECUTION_STATUS_CHANGED) as listener:
            await steadily(add_one, seconds=PROBE_SECONDS)
            first = next(numbers)
            last = first + await steadily(add_one, seconds=0.3)
            await listener.until(lambda: last in ids_of(listener), "the last event")
            received = ids_of(listener)
            assert received == sorted(received)
            assert received[received.index(first + 1) :] == list(range(first + 1, last + 1))


async def test_a_returned_message_that_awaits_its_confirmation_is_no_returned_announcement(
    amqp_url: str,
) -> None:
    returned: list[str] = []
    async with publishing(amqp_url) as publisher:
        publisher.on_announcement_returned = returned.append
        assert await publisher.publish([message("nowhere")]) == [Publication.RETURNED]
        assert returned == []
        news = message("nowhere", message_id="news", persistent=False)
        publisher.announce([news, message("q", persistent=False)])
        await until(lambda: returned == ["news"])
