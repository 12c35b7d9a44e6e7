"""One worker id, from its registration to its sign-off or its loss.

Registers, holds the lease, consumes the pools' queues and its own, drains. Order at the end: take nothing
new, wait for what runs, give back what does not end in time, tell all that, sign off (SIGTERM loses
nothing). Next: `worker.consumer`, `worker.attempt`.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import asyncpg
from aio_pika.abc import AbstractChannel

from common.action_definition import ActionDefinition
from common.broker.consumer import ConsumerConnection
from common.broker.publisher import Publisher
from common.broker.topology import declare_pool, declare_worker, pool_queue, worker_queue
from common.database import Database
from common.domain.errors import Refusal, Unavailable
from common.domain.identifiers import Attempt, ExecutionId, WorkerId
from common.messages import ExecutionCancel
from common.requests import read_json, read_model
from worker.attempt import Attempts
from worker.consumer import PoolConsumer
from worker.lease import Lease
from worker.links import Links
from worker.places import Places
from worker.record import Offer, Record
from worker.runners.assembly import Runners
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_CANCEL_BYTES_MAX: Final = 16 * 1024
_CANCELS_PREFETCH: Final = 100
_GIVING_BACK_SECONDS: Final = 10.0
"""For stopping, handing back and telling, after the drain's time is over."""
_REGISTER_PAUSE_SECONDS: Final = 1.0


class Session:
    """Serves under one worker id."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        definitions: Sequence[ActionDefinition],
        runners: Runners,
    ) -> None:
        self._settings = settings
        self._definitions = definitions
        self._database = database
        self.worker_id = WorkerId(str(uuid4()))
        amqp_url = settings.amqp_url.get_secret_value()
        self._publisher = Publisher(amqp_url, name=f"worker {settings.worker_name} publisher")
        self._consumers = ConsumerConnection(amqp_url, name=f"worker {settings.worker_name} consumer")
        self._pools = settings.worker_pools or sorted({d.pool for d in definitions}) or ["default"]
        self._record = Record(database, self.worker_id, served_refs=[d.ref for d in definitions])
        self._lost = asyncio.Event()
        self._asked_to_drain = asyncio.Event()
        self._lease = Lease(
            settings.database_url.get_secret_value(),
            self.worker_id,
            lease_seconds=settings.lease_duration,
            heartbeat_seconds=settings.heartbeat_interval,
            on_lost=self._lost.set,
            on_drain=self._asked_to_drain.set,
        )
        self._links = Links(self._record, self._publisher, self._lease)
        self._attempts = Attempts(
            self._links, runners, event_result_max_bytes=settings.event_result_max_bytes
        )

    @property
    def broker_error(self) -> str | None:
        """Why the broker cannot be used, or None."""
        connected = self._publisher.connected and self._consumers.connected
        return (
            self._publisher.last_error
            or self._consumers.last_error
            or (None if connected else "not connected")
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, a request to drain, or the loss of the lease."""
        if not await self._register(stop):
            return
        self._lease.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._publisher.run(), name="publisher"),
                    tasks.create_task(self._consumers.run(), name="consumers"),
                    tasks.create_task(self._links.run(), name="links"),
                ]
                background += [tasks.create_task(self._obey_cancels(), name="cancels")]
                pools = self._pool_consumers()
                consuming = [tasks.create_task(pool.run(), name="pool") for pool in pools]
                logger.info(
                    "serving",
                    extra={"worker_id": self.worker_id, "pools": ",".join(self._pools)},
                )
                await _any_of(stop, self._lost, self._asked_to_drain)
                await self._drain(pools)
                for task in (*consuming, *background):
                    task.cancel()
        finally:
            await self._lease.stop()
        if not self._lost.is_set():
            await self._try(lambda: self._database.fetch("SELECT turnstile.sign_off($1)", self.worker_id))
        if self._asked_to_drain.is_set():
            # An operator took this worker out: it idles until its process is stopped.
            await stop.wait()

    async def _register(self, stop: asyncio.Event) -> bool:
        """Register the actions and this worker, however long it takes; False when stopped first."""
        settings = self._settings
        while not stop.is_set():
            try:
                for difference in await self._record.register_actions(self._definitions):
                    logger.warning(
                        "action_differs",
                        extra={"action_ref": difference.ref, "fields": ",".join(difference.fields)},
                    )
                await self._database.fetch(
                    "SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7)",
                    self.worker_id,
                    settings.worker_name,
                    socket.gethostname(),
                    os.getpid(),
                    self._pools,
                    settings.worker_concurrency,
                    settings.lease_duration,
                )
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.warning("not_registered", extra={"reason": str(error)})
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _REGISTER_PAUSE_SECONDS)
            else:
                return True
        return False

    def _pool_consumers(self) -> list[PoolConsumer]:
        concurrency = self._settings.worker_concurrency
        places = Places(concurrency)
        return [
            PoolConsumer(
                self._consumers.subscribe(
                    pool_queue(pool), prefetch=concurrency, declare=self._declares_pool(pool)
                ),
                self._attempts,
                places,
                batch_max=concurrency,
                acknowledge_after_seconds=self._settings.acknowledge_after,
            )
            for pool in self._pools
        ]

    def _declares_pool(self, pool: str) -> Callable[[AbstractChannel], Awaitable[Any]]:
        return lambda channel: declare_pool(channel, pool, queue_type=self._settings.queue_type)

    async def _obey_cancels(self) -> None:
        subscription = self._consumers.subscribe(
            worker_queue(self.worker_id),
            prefetch=_CANCELS_PREFETCH,
            declare=lambda c: declare_worker(c, self.worker_id, queue_type=self._settings.queue_type),
        )
        while True:
            deliveries = await subscription.next_batch(_CANCELS_PREFETCH)
            for delivery in deliveries:
                try:
                    cancel = read_model(
                        ExecutionCancel, read_json(delivery.body, bytes_max=_CANCEL_BYTES_MAX)
                    )
                except Refusal as refusal:
                    logger.warning("cancel_refused", extra={"reason": refusal.message})
                    continue
                offer = Offer(execution_id=ExecutionId(cancel.execution_id), attempt=Attempt(cancel.attempt))
                self._attempts.ask_to_stop(offer, "it was asked to stop")
            subscription.ack(deliveries)

    async def _drain(self, pools: list[PoolConsumer]) -> None:
        """End what is under way: wait, then stop and give back. A lost lease leaves no time."""
        logger.info("draining", extra={"under_way": self._attempts.count})
        self._attempts.draining = True
        if self._lost.is_set():
            self._attempts.give_up_all(lease_lost=True)
        ending = asyncio.gather(*(pool.drain() for pool in pools))
        _, late = await asyncio.wait({ending}, timeout=self._settings.drain_timeout)
        if late:
            self._attempts.give_up_all(lease_lost=False)
            await asyncio.wait({ending}, timeout=self._settings.stop_grace + _GIVING_BACK_SECONDS)
            ending.cancel()

    async def _try(self, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            await ask()
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.warning("not_signed_off", extra={"reason": str(error)})


async def _any_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait(), name="wait") for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
