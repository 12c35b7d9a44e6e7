"""The broker as the worker's core uses it: the queue of a session, reports, heartbeats, logs, on RabbitMQ.

Four connections, so that nothing waits for what it does not need: the session's, which only consumes, since
the broker stops reading from a connection that publishes while it has an alarm; reports, with confirms;
heartbeats; logs and progress. A session's queue is exclusive to its connection and gone with it. Everything
here lives in the event loop of the worker's own thread (`worker.worker_thread`). Nothing is repeated here:
the core repeats what it must.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from aio_pika.abc import AbstractChannel, ExchangeType

from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import BrokerUnavailable, answered
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    session_queue,
)
from turnstile.common.domain.errors import Unavailable
from turnstile.common.envelopes import envelope
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.worker_protocol import AttemptEnded, Heartbeat, Held, Hello, Report, ToSession
from turnstile.common.worker_wire import (
    WORKER_HEARTBEAT,
    WORKER_HELLO,
    WORKER_REPORTS,
    InvalidWireMessage,
    decode_to_session,
    encode_heartbeat,
    encode_reports,
)

logger = logging.getLogger(__name__)
_UNREADABLE: Final = Episodes(logger, "leader_message_unreadable")

_PREFETCH: Final = 200
"""AMQP messages, each with up to a megabyte of offers, that wait in memory to be taken."""
_TOGETHER_MAX: Final = 200
_TOGETHER_BYTES_MAX: Final = 64 * 1024
"""Bounds of the reports that share an AMQP message; a larger report is alone in its own."""
_REPORT_BYTES: Final = 200
_HEARTBEATS_IN_A_LEASE: Final = 5
_HEARTBEAT_SECONDS_MAX: Final = 10
_BACKOFF_SECONDS_MAX: Final = 2.0
_NO_EXECUTOR: Final = "no executor has created its queues on this broker yet"


class SessionQueue:
    """The queue of one session, on a connection of its own."""

    def __init__(self, name: str, rpc_seconds: float) -> None:
        self.name = name
        self._rpc_seconds = rpc_seconds
        self._channel: BulkChannel | None = None
        self._deliveries: deque[Delivery] = deque()
        self._messages: deque[ToSession] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False
        """It was given up while its connection stood."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it was closed, or its connection is gone."""

    async def open(self, link: Link) -> None:
        """Declare and consume it; raises BrokerUnavailable."""
        self._channel = channel = await link.open_channel(on_delivery=self._arrived)
        for gone in (link.gone, channel.gone):
            gone.add_done_callback(self._end)
        channel.on_consumer_cancel_callbacks.add(self._end)
        declaring = channel.queue_declare(self.name, exclusive=True, arguments={"x-queue-type": "classic"})
        await answered(declaring, self._rpc_seconds)
        await answered(channel.basic_qos(prefetch_count=_PREFETCH), self._rpc_seconds)
        await answered(channel.basic_consume(self.name, _never_called), self._rpc_seconds)

    async def take(self, count: int) -> list[ToSession]:
        """Wait for messages; return up to `count`, in order. Raises Unavailable once the connection ended."""
        messages = self._messages
        while not self.ended.done():
            self._read()
            if messages:
                return [messages.popleft() for _ in range(min(count, len(messages)))]
            self._changed.clear()
            await self._changed.wait()
        raise Unavailable("the connection of the session is gone")

    async def probe(self) -> None:
        """Return once it is certain that a cancel that is sent now would arrive here. Raises Unavailable.

        Asked on the consuming channel: the queue exists, this connection is its only consumer, and what was
        put into it before has been sent ahead of the answer. The leader's way, the default exchange, is not
        used: a worker that could publish there could give orders to other workers. Nor would a message of
        its own arrive while the broker has an alarm, when the leader, too, can send and reclaim nothing.
        """
        channel = self._channel
        if channel is None or self.ended.done():
            raise Unavailable("the connection of the session is gone")
        try:
            found = await answered(channel.queue_declare(self.name, passive=True), self._rpc_seconds)
        except BrokerUnavailable as error:
            raise Unavailable(str(error)) from error
        if found.consumer_count != 1 or self.ended.done():
            raise Unavailable(f"the queue has {found.consumer_count} consumers")

    def close(self) -> None:
        """Give it up; repeatable. It is deleted soon, at the latest with its connection."""
        self.is_closed = not self.ended.done() or self.is_closed
        self._end()

    async def delete(self) -> None:
        """Delete it. Raises BrokerUnavailable."""
        assert self._channel is not None
        await answered(self._channel.queue_delete(self.name), self._rpc_seconds)
        await answered(self._channel.close(), self._rpc_seconds)

    def _read(self) -> None:
        """Decode what has arrived, and acknowledge it: it is in memory."""
        if not self._deliveries or self._messages:
            return
        for delivery in self._deliveries:
            try:
                self._messages += decode_to_session(delivery.body)
            except InvalidWireMessage as invalid:
                # The leader sees a gap, and sends it again: a leader of another version, or not a leader.
                _UNREADABLE.failed("messages", reason=str(invalid))
        assert self._channel is not None
        self._channel.ack(self._deliveries[-1].tag, ())
        self._deliveries.clear()

    def _arrived(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._changed.set()

    def _end(self, _: object = None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._changed.set()


class _Wanted:
    """A session that waits for a connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: asyncio.Future[SessionQueue] = asyncio.get_running_loop().create_future()


class AmqpBroker:
    """The port `Broker` of the core; `run` keeps its connections."""

    def __init__(self, url: str, *, name: str, lease_seconds: float, heartbeat_seconds: float) -> None:
        # A stopped or cut-off worker loses its queue well within its lease, and an answer comes in time.
        broker_heartbeat = min(_HEARTBEAT_SECONDS_MAX, round(lease_seconds / _HEARTBEATS_IN_A_LEASE))
        self._timeouts = timeouts = BrokerTimeouts(
            rpc_seconds=min(5.0, lease_seconds / 6),
            heartbeat_seconds=max(1, broker_heartbeat),
            backoff_max_seconds=_BACKOFF_SECONDS_MAX,
        )
        half = heartbeat_seconds / 2
        self._connection = BrokerConnection(url, name=f"worker {name} session", timeouts=timeouts)
        publisher = partial(Publisher, url, declare=_check_exchange)
        self._reports = publisher(name=f"worker {name} reports", timeouts=_publishing(5.0, 10.0))
        self._heartbeats = publisher(
            name=f"worker {name} heartbeats", timeouts=_publishing(half / 2, half / 2)
        )
        self._live = publisher(name=f"worker {name} logs", timeouts=_publishing(2.0, 5.0))
        self._wanted: _Wanted | None = None
        self._is_wanted = asyncio.Event()

    @property
    def last_error(self) -> str | None:
        """Why the worker cannot use the broker; None: it can."""
        connected = self._connection.connected and self._reports.connected and self._heartbeats.connected
        errors = (each.last_error for each in (self._connection, self._reports, self._heartbeats))
        return next(filter(None, errors), None) or (None if connected else "not connected")

    @property
    def is_blocked(self) -> bool:
        """Whether the broker accepts no messages: what has ended is reported later."""
        # The broker announces it to a connection that publishes; an idle worker sends only heartbeats.
        return self._reports.blocked or self._heartbeats.blocked

    async def run(self) -> None:
        """Stay connected until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connection.run(self._serve), name="broker: session")
            for publisher in (self._reports, self._heartbeats, self._live):
                tasks.create_task(publisher.run(), name="broker: publisher")

    # Sessions.

    async def open_session(self, worker_id: str, session: int) -> SessionQueue:
        """Declare and consume the queue of a session. Raises Unavailable."""
        wanted = self._wanted = _Wanted(session_queue(worker_id, session))
        self._is_wanted.set()
        try:
            async with asyncio.timeout(self._timeouts.connect_seconds):
                return await wanted.opened
        except TimeoutError:
            raise Unavailable(self._connection.last_error or "the broker did not answer in time") from None
        finally:
            if self._wanted is wanted:
                self._wanted = None
                self._is_wanted.clear()

    async def _serve(self, link: Link) -> None:
        """Serve one session after the other on one connection; a session that broke ends it."""
        while (wanted := await self._next_wanted(link)) is not None:
            queue = SessionQueue(wanted.name, self._timeouts.rpc_seconds)
            try:
                await queue.open(link)
            except BrokerUnavailable as error:
                if not wanted.opened.done():
                    wanted.opened.set_exception(Unavailable(str(error)))
                raise
            if wanted.opened.done():
                queue.close()
            else:
                link.serving()
                wanted.opened.set_result(queue)
            await queue.ended
            if not queue.is_closed:
                return
            await queue.delete()

    async def _next_wanted(self, link: Link) -> _Wanted | None:
        """Wait until a session is wanted; None: the connection is gone."""
        waiting = asyncio.create_task(self._is_wanted.wait(), name="session wanted")
        try:
            either: set[asyncio.Future[Any]] = {waiting, link.gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        wanted, self._wanted = self._wanted, None
        self._is_wanted.clear()
        return wanted if link.is_open else None

    # What the worker sends.

    async def publish_reports(self, reports: Sequence[Report]) -> None:
        """Publish in order; return once all are confirmed. Raises Unavailable."""
        await self._publish(
            self._reports,
            [
                _to_executor(encode_reports(each), WORKER_REPORTS, EXECUTOR_COMPLETIONS)
                for each in _together(reports)
            ],
        )

    async def send_heartbeat(self, message: Hello | Heartbeat) -> None:
        """Send a hello or a heartbeat. Raises Unavailable."""
        kind = WORKER_HELLO if isinstance(message, Hello) else WORKER_HEARTBEAT
        body = encode_heartbeat(message)
        await self._publish(
            self._heartbeats, [_to_executor(body, kind, EXECUTOR_HEARTBEATS, persistent=False)]
        )

    async def publish_live(self, kind: str, body: bytes) -> None:
        """Publish an `execution.log` or an `execution.progress`. Raises Unavailable."""
        await self._publish(self._live, [_to_executor(body, kind, EXECUTOR_REPORTS)])

    async def _publish(self, publisher: Publisher, messages: Sequence[Outgoing]) -> None:
        try:
            answers = await publisher.publish(messages)
        except BrokerUnavailable as error:
            raise Unavailable(str(error)) from error
        for answer in answers:
            if answer is not Publication.CONFIRMED:
                reason = _NO_EXECUTOR if answer is Publication.RETURNED else "the queue is full or broken"
                raise Unavailable(reason)


def _publishing(wait_seconds: float, confirm_seconds: float) -> BrokerTimeouts:
    return BrokerTimeouts(
        wait_seconds=wait_seconds, confirm_seconds=confirm_seconds, backoff_max_seconds=_BACKOFF_SECONDS_MAX
    )


async def _check_exchange(channel: AbstractChannel) -> None:
    """Raise unless the leader's exchange exists: publishing to a missing one closes the channel."""
    await channel.declare_exchange(EXECUTOR, ExchangeType.DIRECT, passive=True)


def _to_executor(body: bytes, kind: str, routing_key: str, *, persistent: bool = True) -> Outgoing:
    return envelope(
        body,
        message_type=kind,
        exchange=EXECUTOR,
        routing_key=routing_key,
        app_id="worker",
        persistent=persistent,
    )


def _together(reports: Sequence[Report]) -> Iterator[Sequence[Report]]:
    """Yield reports, in order, that share an AMQP message."""
    start = together_bytes = 0
    for index, report in enumerate(reports):
        size_bytes = _size_bytes(report)
        is_full = together_bytes + size_bytes > _TOGETHER_BYTES_MAX or index - start == _TOGETHER_MAX
        if is_full and index > start:
            yield reports[start:index]
            start, together_bytes = index, 0
        together_bytes += size_bytes
    if start < len(reports):
        yield reports[start:]


def _size_bytes(report: Report) -> int:
    match report.body:
        case AttemptEnded(result=result, log=log):
            return _REPORT_BYTES + len(result or b"") + len(log or "")
        case Held(grants=grants):
            return _REPORT_BYTES + 40 * len(grants)
        case _:
            return _REPORT_BYTES


async def _never_called(_: object) -> None:
    """Serve as the callback that the library requires; `BulkChannel` passes on deliveries itself."""
