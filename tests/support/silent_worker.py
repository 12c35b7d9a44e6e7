"""A worker that takes every offer of a pool, starts nothing, and ends what is cancelled or expires.

So executions of its pool stay `scheduled` for as long as a test needs. It has a thread and a loop of its own,
because tests of command lines block theirs.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiormq

from turnstile.common.broker.topology import EXECUTOR, EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptStarted,
    CancelAttempt,
    EndStatus,
    Held,
    Hello,
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
    WORKER_HELLO,
    WORKER_REPORTS,
    decode_to_session,
    encode_heartbeat,
    encode_reports,
)

_JOIN_SECONDS = 30.0


@contextmanager
def silent_worker(amqp_url: str, name: str, pool: str) -> Iterator[None]:
    """Run such a worker, whose id is its name, until the end of the block."""
    worker = _SilentWorker(amqp_url, name, pool)
    thread = threading.Thread(target=asyncio.run, args=(worker.run(),), name=name, daemon=True)
    thread.start()
    try:
        assert worker.has_joined.wait(_JOIN_SECONDS), f"{name} was not welcome"
        yield
    finally:
        worker.stop()
        thread.join(_JOIN_SECONDS)


class _SilentWorker:
    def __init__(self, amqp_url: str, name: str, pool: str) -> None:
        self._amqp_url, self._name, self._pool = amqp_url, name, pool
        self._sender = Sender(worker_id=name, session=1, secret="of a test")
        self._held: dict[int, Grant] = {}
        self._expiring: set[asyncio.Task[None]] = set()
        self._epoch, self._reports = 0, 0
        self._channel: aiormq.abc.AbstractChannel
        self._loop: asyncio.AbstractEventLoop
        self._stopping = asyncio.Event()
        self.has_joined = threading.Event()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        connection = await aiormq.connect(self._amqp_url)
        try:
            self._channel = await connection.channel()
            queue = f"worker.{self._name}.{self._sender.session}"
            await self._channel.queue_declare(queue, exclusive=True)
            await self._channel.basic_consume(queue, self._take, no_ack=True)
            hello = Hello(
                sender=self._sender,
                name=self._name,
                pools=(self._pool,),
                actions=None,
                concurrency=1000,
                lease_seconds=36000.0,
                epoch_seen=0,
            )
            await self._publish(encode_heartbeat(hello), WORKER_HELLO, EXECUTOR_HEARTBEATS)
            await self._stopping.wait()
        finally:
            for expiring in self._expiring:
                expiring.cancel()
            await connection.close()

    async def _take(self, message: aiormq.abc.DeliveredMessage) -> None:
        for each in decode_to_session(message.body):
            await self._answer(each)

    async def _answer(self, message: ToSession) -> None:
        self._epoch = message.epoch
        match message.body:
            case Welcome():
                await self._report(Held(epoch=message.epoch, grants=tuple(self._held.items())))
                self.has_joined.set()
            case Offers(offers=offers):
                for offer in offers:
                    self._held[offer.execution_id] = offer.grant
                    if offer.expires_in_seconds is not None:
                        expiring = asyncio.create_task(self._expire(offer, offer.expires_in_seconds))
                        self._expiring.add(expiring)
                        expiring.add_done_callback(self._expiring.discard)
            case CancelAttempt() as cancel:
                await self._end(
                    cancel.execution_id, cancel.grant, Status.CANCELLED, ("Cancelled", cancel.reason)
                )
            case Recall():
                # A leader gives nothing more before it knows what runs.
                for execution_id, grant in self._held.items():
                    await self._report(AttemptStarted(execution_id=execution_id, grant=grant, at=time.time()))
            case _:
                pass

    async def _expire(self, offer: Offer, after_seconds: float) -> None:
        await asyncio.sleep(max(after_seconds, 0))
        await self._end(offer.execution_id, offer.grant, Status.EXPIRED, ("Expired", "not started in time"))

    async def _end(self, execution_id: int, grant: Grant, status: EndStatus, error: tuple[str, str]) -> None:
        if self._held.get(execution_id) == grant:
            del self._held[execution_id]
            await self._report(
                AttemptEnded(execution_id=execution_id, grant=grant, status=status, error=error)
            )

    async def _report(self, body: ReportBody) -> None:
        self._reports += 1
        report = Report(
            sender=self._sender, number=self._reports, kept_from=1, epoch_seen=self._epoch, body=body
        )
        await self._publish(encode_reports([report]), WORKER_REPORTS, EXECUTOR_COMPLETIONS)

    async def _publish(self, body: bytes, message_type: str, key: str) -> None:
        properties = aiormq.spec.Basic.Properties(message_type=message_type, app_id="worker")
        await self._channel.basic_publish(body, exchange=EXECUTOR, routing_key=key, properties=properties)
