"""A worker that takes every offer of a pool, starts nothing, and ends what is cancelled or expires.

So executions of its pool stay `scheduled` for as long as a test needs. It has a thread and a loop of its own,
because tests of command lines block theirs.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiormq

from tests.support.inbox import ScriptedWorker
from turnstile.common.broker.topology import EXECUTOR, session_queue
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import CancelAttempt, Hello, Offers, ToSession, Welcome
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
        self._amqp_url, self._pool = amqp_url, pool
        self._worker = ScriptedWorker(self._put, name, worker_id=name)
        self._unsent = asyncio.Queue[tuple[str, Any]]()
        self._loop: asyncio.AbstractEventLoop
        self._stopping = asyncio.Event()
        self.has_joined = threading.Event()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        connection = await aiormq.connect(self._amqp_url)
        try:
            channel = await connection.channel()
            sender = self._worker.sender
            queue = session_queue(sender.worker_id, sender.session)
            await channel.queue_declare(queue, exclusive=True)
            await channel.basic_consume(queue, self._take, no_ack=True)
            self._worker.hello(pools=(self._pool,), concurrency=1000, lease_seconds=36000.0)
            sending = asyncio.create_task(self._send(channel), name="silent-worker-sends")
            await self._stopping.wait()
            sending.cancel()
        finally:
            await connection.close()

    def _put(self, queue: str, body: Any) -> None:
        self._unsent.put_nowait((queue, body))

    async def _send(self, channel: aiormq.abc.AbstractChannel) -> None:
        while True:
            key, body = await self._unsent.get()
            is_hello = isinstance(body, Hello)
            encoded = encode_heartbeat(body) if is_hello else encode_reports([body])
            kind = WORKER_HELLO if is_hello else WORKER_REPORTS
            properties = aiormq.spec.Basic.Properties(message_type=kind, app_id="worker")
            await channel.basic_publish(encoded, exchange=EXECUTOR, routing_key=key, properties=properties)

    async def _take(self, message: aiormq.abc.DeliveredMessage) -> None:
        for each in decode_to_session(message.body):
            self._worker.receive(each)
            self._answer(each)

    def _answer(self, message: ToSession) -> None:
        match message.body:
            case Welcome():
                self.has_joined.set()
            case Offers(offers=offers):
                for offer in offers:
                    if (seconds := offer.expires_in_seconds) is not None:
                        error = ("Expired", "not started in time")
                        end = (offer.execution_id, offer.grant, Status.EXPIRED, error)
                        self._loop.call_later(max(seconds, 0), self._end, *end)
            case CancelAttempt(execution_id=execution_id, grant=grant, reason=reason):
                self._end(execution_id, grant, Status.CANCELLED, ("Cancelled", reason))
            case _:
                pass

    def _end(self, execution_id: int, grant: Grant, status: Status, error: tuple[str, str]) -> None:
        offer = self._worker.offered.get(execution_id)
        if offer is not None and offer.grant == grant:
            self._worker.end(execution_id, status, error=error, started_at=None, completed_at=None)
