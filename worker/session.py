"""One worker id, from its registration to its sign-off or its loss.

Registers, holds the lease, consumes the pools' queues and its own, drains. Order at the end: take nothing
new, wait for what runs, give back what does not end in time, tell all that, sign off (SIGTERM loses
nothing). What could not be stopped is given back last, and the process ends with it (`worker.leaving`). When
the lease is lost: kill all, write and tell nothing, sign off once the database answers, so that what ran is
taken back at once (P6). Next: `worker.consumer`, `worker.attempt`, `worker.cancels`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import uuid4

from aio_pika.abc import AbstractChannel

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_workers, ensure_pool, pool_queue
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import WorkerId
from turnstile.worker.attempt import Attempts
from turnstile.worker.cancels import Cancels
from turnstile.worker.consumer import PoolConsumer
from turnstile.worker.fence import Terms
from turnstile.worker.gauges import show
from turnstile.worker.lease import Lease
from turnstile.worker.lease_thread import LeaseThread
from turnstile.worker.leaving import leave_with_process
from turnstile.worker.links import Links
from turnstile.worker.log_flusher import LogFlusher
from turnstile.worker.metrics import LEASES_LOST
from turnstile.worker.own_queue import OwnQueue
from turnstile.worker.places import Places
from turnstile.worker.record import Record
from turnstile.worker.registration import Registration
from turnstile.worker.runners.assembly import Runners
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_GIVING_BACK_SECONDS: Final = 10.0
"""For stopping, handing back and telling, after the drain's time is over."""
_STOPPED_LOOK_SECONDS: Final = 0.02
_COURIER_TIMEOUTS: Final = BrokerTimeouts(confirm_seconds=2.0)
_BROKER_HEARTBEATS_IN_A_LEASE: Final = 5
_BROKER_HEARTBEAT_SECONDS_MAX: Final = 10


class Session:
    """Serves under one worker id."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        definitions: Sequence[ActionDefinition],
        runners: Runners,
    ) -> None:
        """Make it in the event loop that serves."""
        self._settings = settings
        self._runners = runners
        self.worker_id = WorkerId(str(uuid4()))
        self._own_queue = OwnQueue(self.worker_id, settings.queue_type)
        amqp_url = settings.amqp_url.get_secret_value()
        self._publisher = Publisher(
            amqp_url,
            name=f"worker {settings.worker_name} publisher",
            declare=self._own_queue.declare,
        )
        self._consumers = ConsumerConnection(
            amqp_url,
            name=f"worker {settings.worker_name} consumer",
            timeouts=BrokerTimeouts(heartbeat_seconds=_broker_heartbeat_seconds(settings.lease_duration)),
        )
        self._pools = settings.worker_pools or sorted({d.pool for d in definitions}) or ["default"]
        record = Record(database, self.worker_id, served_refs=[d.ref for d in definitions])
        self._registration = Registration(
            settings, database, record, self.worker_id, definitions=definitions, pools=self._pools
        )
        self._ending = asyncio.Event()
        self._asked_to_drain = asyncio.Event()
        terms = Terms(lease_seconds=settings.lease_duration, heartbeat_seconds=settings.heartbeat_interval)
        self._lease = Lease(terms, on_lost=self._lose, hold_until=runners.hold_until)
        self._lease_thread = LeaseThread(
            self._lease,
            settings.database_url.get_secret_value(),
            self.worker_id,
            on_drain=self._asked_to_drain.set,
        )
        logs = LogFlusher(record, interval_seconds=settings.log_flush_interval)
        strangers = Publisher(
            amqp_url,
            name=f"worker {settings.worker_name} courier",
            declare=lambda channel: declare_workers(channel, queue_type=settings.queue_type),
            timeouts=_COURIER_TIMEOUTS,
        )
        self._links = Links(record, self._publisher, strangers, self._lease, logs)
        self._attempts = Attempts(
            self._links, runners, event_result_max_bytes=settings.event_result_max_bytes
        )
        show(settings, self._attempts, self._lease, self._publisher)

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
        if not await self._registration.begin(stop):
            return
        self._lease_thread.start()
        try:
            await self._serve(stop)
        finally:
            await self._lease_thread.stop()
        if not self._lease.given_up:
            await self._registration.end(stop)
        counts = " ".join(f"{verdict}={count}" for verdict, count in self._attempts.not_applied.items())
        logger.info("session_ended", extra={"worker_id": self.worker_id, "not_applied": counts or "0"})
        if self._asked_to_drain.is_set():
            # An operator took this worker out: it idles until its process is stopped.
            await stop.wait()

    async def _serve(self, stop: asyncio.Event) -> None:
        cancels = Cancels(self._consumers, self._own_queue, self._attempts)
        pools = self._pool_consumers()
        async with asyncio.TaskGroup() as tasks:
            serving = [
                tasks.create_task(self._publisher.run(), name="publisher"),
                tasks.create_task(self._consumers.run(), name="consumers"),
                tasks.create_task(self._links.run(), name="links"),
                tasks.create_task(cancels.obey(), name="cancels"),
                tasks.create_task(cancels.prove(self._lease), name="broker-proof"),
                *(tasks.create_task(pool.run(), name="pool") for pool in pools),
            ]
            standing_back = tasks.create_task(self._stand_back_in_doubt(pools), name="stand-back")
            logger.info("serving", extra={"worker_id": self.worker_id, "pools": ",".join(self._pools)})
            await _any_of(stop, self._ending, self._asked_to_drain)
            standing_back.cancel()
            if not self._lease.lost:
                await self._drain(pools)
            left_behind = self._runners.left_behind
            if (left_behind or self._attempts.kept) and not self._lease.lost:
                leave_with_process(self._settings, self.worker_id, self._attempts.kept, left_behind)
            for task in serving:
                task.cancel()
            if self._lease.lost:
                await self._all_stopped()

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
        return lambda channel: ensure_pool(channel, pool, queue_type=self._settings.queue_type)

    async def _stand_back_in_doubt(self, pools: Sequence[PoolConsumer]) -> None:
        """Leave the offers to other workers while nothing may be started here."""
        while not self._lease.lost:
            await self._lease.doubted()
            for pool in pools:
                await pool.stand_back()
            self._attempts.leave_unclaimed()
            if await self._lease.certain():
                for pool in pools:
                    await pool.take_again()

    async def _drain(self, pools: list[PoolConsumer]) -> None:
        """End what is under way: wait, then stop and give back. Return at once when the lease is lost."""
        logger.info("draining", extra={"under_way": self._attempts.count})
        self._attempts.draining = True
        self._attempts.leave_unclaimed()
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(self._ending.wait(), name="lease-lost")
            drained = tasks.create_task(_drained(pools), name="drained")
            ends: set[asyncio.Future[Any]] = {drained, lost}
            await asyncio.wait(
                ends, timeout=self._settings.drain_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not (drained.done() or lost.done()):
                self._attempts.give_back_all()
                await asyncio.wait(
                    ends,
                    timeout=self._settings.stop_grace + _GIVING_BACK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            drained.cancel()
            lost.cancel()

    def _lose(self) -> None:
        """End everything at once: the lease is lost."""
        LEASES_LOST.add()
        self._attempts.lose_all()
        self._ending.set()

    async def _all_stopped(self) -> None:
        """Wait until nothing of this id runs; if that takes too long, the lease's thread ends the process."""
        while self._attempts.running or self._runners.left_behind:  # noqa: ASYNC110  (who runs is counted by others)
            await asyncio.sleep(_STOPPED_LOOK_SECONDS)
        self._lease.all_stopped()


async def _drained(pools: Sequence[PoolConsumer]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for pool in pools:
            tasks.create_task(pool.drain(), name="drain-pool")


async def _any_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait(), name="wait") for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _broker_heartbeat_seconds(lease_seconds: float) -> int:
    """Return how often the broker wants a sign of life.

    It gives up a worker that stands still after two or three of these, and offers to others what it had sent
    there: well before the lease is over, since until then each offer holds a slot.
    """
    return max(1, min(_BROKER_HEARTBEAT_SECONDS_MAX, round(lease_seconds / _BROKER_HEARTBEATS_IN_A_LEASE)))
