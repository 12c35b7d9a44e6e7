"""A leader that a script plays against a real worker over a real broker.

It welcomes, answers heartbeats and commits reports, unless it is told not to; everything that arrived can be
read. Its queues and its exchange are deleted with its connection, so it leaves nothing in the vhost.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    session_queue,
)
from turnstile.common.domain.identifiers import Grant
from turnstile.common.envelopes import envelope
from turnstile.common.report_wire import (
    EXECUTION_LOG,
    EXECUTION_PROGRESS,
    LogPiece,
    ProgressReport,
    decode_log,
    decode_progress,
)
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Heard,
    Heartbeat,
    Hello,
    LeaderBody,
    Leaving,
    Offer,
    Offers,
    Recall,
    Report,
    ReportBody,
    Sender,
    ToSession,
    Welcome,
)
from turnstile.common.worker_wire import (
    LEADER_MESSAGES,
    WORKER_HEARTBEAT,
    WORKER_HELLO,
    WORKER_REPORTS,
    InvalidWireMessage,
    decode_heartbeat,
    decode_hello,
    decode_reports,
    encode_to_session,
)

T = TypeVar("T")
_QUEUES: Final = (EXECUTOR_HEARTBEATS, EXECUTOR_COMPLETIONS, EXECUTOR_REPORTS)
_CONNECT_SECONDS: Final = 20.0


class ScriptedLeader:
    """Reads the leader's queues of one vhost."""

    def __init__(self, amqp_url: str) -> None:
        self.publisher = Publisher(amqp_url, name="leader")
        self.consumers = ConsumerConnection(amqp_url, name="leader")
        self.epoch = 1
        self.is_welcoming = True
        self.is_answering = True
        self.is_committing = True
        self.is_draining = False
        """What its answers say."""
        self.arrived: list[Arrived] = []
        """Every message, in the order of arrival."""
        self.hellos: list[Hello] = []
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[Report] = []
        """As they arrived, copies included."""
        self.pieces: list[LogPiece] = []
        self.progress: list[ProgressReport] = []
        self.unreadable: list[str] = []
        """What is wrong with messages that do not follow the protocol."""
        self._committed: dict[str, int] = {}
        self._sent: dict[tuple[int, str, int], int] = {}

    @asynccontextmanager
    async def leading(self) -> AsyncIterator["ScriptedLeader"]:
        """Consume and answer until the end of the block."""
        async with asyncio.TaskGroup() as tasks:
            running: list[asyncio.Task[Any]] = [
                tasks.create_task(each.run()) for each in (self.publisher, self.consumers)
            ]
            for queue in _QUEUES:
                subscription = self.consumers.subscribe(queue, prefetch=500, declare=_declare)
                running.append(tasks.create_task(self._consume(subscription)))
            both = (self.publisher, self.consumers)
            await until(lambda: all(each.connected for each in both), self._why_not, _CONNECT_SECONDS)
            yield self
            for task in running:
                task.cancel()

    def _why_not(self) -> str:
        reason = self.publisher.last_error or self.consumers.last_error
        return f"The leader of the kit cannot use the broker: {reason}"

    async def _consume(self, subscription: Subscription) -> None:
        while True:
            batch = await subscription.next_batch(100)
            for delivery in batch:
                self.arrived.append(Arrived.of(delivery))
                try:
                    await self._take(delivery)
                except InvalidWireMessage as invalid:
                    self.unreadable.append(f"a message of the type {delivery.type}: {invalid}")
            subscription.ack(batch)

    async def _take(self, delivery: Delivery) -> None:
        match delivery.type:
            case "worker.hello":
                await self._hello(decode_hello(delivery.body))
            case "worker.heartbeat":
                await self._heartbeat(decode_heartbeat(delivery.body))
            case "worker.reports":
                self._reports(decode_reports(delivery.body))
            case "execution.log":
                self.pieces += decode_log(delivery.body)[1]
            case "execution.progress":
                self.progress += decode_progress(delivery.body)[1]
            case other:
                raise InvalidWireMessage(f"type: {other!r} is none of {', '.join(_TYPES)}")

    async def _hello(self, hello: Hello) -> None:
        self.hellos.append(hello)
        if self.is_welcoming:
            await self.send(Welcome(stored=()))

    async def _heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats.append(heartbeat)
        if self.is_answering:
            await self.answer(heartbeat)

    async def answer(self, heartbeat: Heartbeat) -> None:
        """Answer a heartbeat."""
        committed = self._committed.get(heartbeat.sender.worker_id, 0)
        await self.send(
            Heard(heartbeat=heartbeat.number, committed=committed, is_draining=self.is_draining),
            to=heartbeat.sender,
        )

    def _reports(self, reports: list[Report]) -> None:
        for report in reports:
            self.reports.append(report)
        if self.is_committing:
            self.commit()

    def commit(self) -> None:
        """Commit what has arrived; the next answer says so."""
        for report in self.reports:
            worker_id = report.sender.worker_id
            if report.number == self._committed.get(worker_id, 0) + 1:
                self._committed[worker_id] = report.number

    def committed(self, worker_id: str) -> int:
        """Return the number up to which the reports of a worker are committed."""
        return self._committed.get(worker_id, 0)

    # What it sends.

    @property
    def hello(self) -> Hello:
        """The last one."""
        return self.hellos[-1]

    def next_number(self, to: Sender | None = None) -> int:
        """Count up the messages of this epoch to a session, the newest one by default; return the number."""
        sender = to or self.hello.sender
        key = (self.epoch, sender.worker_id, sender.session)
        self._sent[key] = self._sent.get(key, 0) + 1
        return self._sent[key]

    async def send(self, *bodies: LeaderBody, to: Sender | None = None) -> int:
        """Send messages in one body to a session, the newest one by default; return the last number."""
        numbers = [self.next_number(to) for _ in bodies]
        await self.send_numbered(*zip(numbers, bodies, strict=True), to=to)
        return numbers[-1]

    async def send_numbered(
        self, *messages: tuple[int, LeaderBody], to: Sender | None = None, epoch: int | None = None
    ) -> Publication:
        """Send messages under these numbers, as a copy or after a gap; return what the broker says."""
        sender = to or self.hello.sender
        body = encode_to_session(
            [
                ToSession(epoch=self.epoch if epoch is None else epoch, number=number, body=each)
                for number, each in messages
            ]
        )
        (publication,) = await self.publisher.publish(
            [
                envelope(
                    body,
                    message_type=LEADER_MESSAGES,
                    exchange="",
                    routing_key=session_queue(sender.worker_id, sender.session),
                    app_id="executor",
                    persistent=False,
                )
            ]
        )
        return publication

    async def offer(
        self, action: str, *ids: int, at_once: int | None = None, parameters: bytes = b"{}", **fields: Any
    ) -> None:
        """Offer executions of an action, in one message of its queue."""
        offers = [offer(each, action, parameters, **fields) for each in ids]
        await self.send(Offers(queue=action, at_once=at_once, offers=tuple(offers)))

    async def cancel(self, execution_id: int) -> None:
        """Cancel an execution."""
        await self.send(
            CancelAttempt(execution_id=execution_id, grant=grant(execution_id), reason="cancelled on request")
        )

    async def recall(self, queue: str, barrier: int) -> None:
        """Recall a queue up to the grant of an execution."""
        await self.send(Recall(queue=queue, barrier=grant(barrier)))

    # What arrived.

    def bodies(self, kind: type[T]) -> list[T]:
        """Return the reports of one kind, each number of a worker once, in order."""
        seen: dict[tuple[str, int], ReportBody] = {}
        for report in self.reports:
            seen.setdefault((report.sender.worker_id, report.number), report.body)
        return [body for body in seen.values() if isinstance(body, kind)]

    def ends(self) -> dict[int, AttemptEnded]:
        """Return the last end of each execution."""
        return {each.execution_id: each for each in self.bodies(AttemptEnded)}

    def returns(self) -> dict[int, AttemptReturned]:
        """Return the last return of each execution."""
        return {each.execution_id: each for each in self.bodies(AttemptReturned)}

    def started(self) -> list[int]:
        """Return the executions of which a start was reported, in order."""
        return [each.execution_id for each in self.bodies(AttemptStarted)]

    @property
    def has_left(self) -> bool:
        """Whether a worker has reported that it leaves."""
        return bool(self.bodies(Leaving))

    async def ended(self, *ids: int, seconds: float = 30.0) -> list[AttemptEnded]:
        """Wait for these ends; return them."""

        def missing() -> str:
            return f"No end was reported within {seconds:g} s of {sorted(set(ids) - self.ends().keys())}."

        await until(lambda: self.ends().keys() >= set(ids), missing, seconds)
        return [self.ends()[each] for each in ids]

    async def is_served(self) -> None:
        """Wait until a worker's lease is certain: two of its heartbeats were answered."""
        await until(lambda: len(self.heartbeats) >= 2, "No two heartbeats have arrived within 30 s.", 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """One AMQP message of a worker."""

    at: float
    """By the monotonic clock."""
    type: str | None
    routing_key: str
    body: bytes
    is_persistent: bool

    @classmethod
    def of(cls, delivery: Delivery) -> "Arrived":
        """Return what is kept of a delivery."""
        return cls(
            at=time.monotonic(),
            type=delivery.type,
            routing_key=delivery.routing_key,
            body=delivery.body,
            is_persistent=delivery.is_persistent,
        )


_TYPES: Final = (WORKER_HELLO, WORKER_HEARTBEAT, WORKER_REPORTS, EXECUTION_LOG, EXECUTION_PROGRESS)


def grant(execution_id: int) -> Grant:
    """Return the grant under which the script offers an execution."""
    return Grant(1, execution_id)


def offer(execution_id: int, action: str, parameters: bytes, **fields: Any) -> Offer:
    """Return an offer of an execution, by its own grant if no other is given."""
    given: dict[str, Any] = {"grant": grant(execution_id), "attempt": 1} | fields
    return Offer(execution_id=execution_id, action_ref=action, parameters=parameters, **given)


async def _declare(channel: AbstractChannel) -> None:
    """Create the leader's queues and their exchange, until the connection is gone."""
    exchange = await channel.declare_exchange(EXECUTOR, ExchangeType.DIRECT, durable=True, auto_delete=True)
    for name in _QUEUES:
        queue = await channel.declare_queue(name, exclusive=True)
        await queue.bind(exchange, name)


class NotWithin(AssertionError):
    """A condition did not become true in time; the text is a sentence about the worker."""


async def until(
    condition: Callable[[], bool | Awaitable[bool]], otherwise: str | Callable[[], str], seconds: float
) -> None:
    """Wait until a condition is true; raises NotWithin with the sentence `otherwise`."""
    now = asyncio.get_running_loop().time
    began_at = now()
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        waited_seconds = now() - began_at
        if waited_seconds >= seconds:
            raise NotWithin(otherwise if isinstance(otherwise, str) else otherwise())
        await asyncio.sleep(min(max(waited_seconds / 10, 0.01), 0.1))
