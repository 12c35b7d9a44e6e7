"""One worker id, from its registration to its sign-off or the loss of its lease.

Registers, holds the lease, consumes the pools' queues and the control queue, drains. SIGTERM loses nothing:
take nothing new, wait for what runs, hand back what does not end in time, publish all that, sign off. A run
that could not be stopped is handed back last, and the process ends with it (`_end_process`). When the lease
is lost: kill all, write and publish nothing, sign off once the database answers, so that whatever ran is
reclaimed at once (P6).
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn
from uuid import uuid4

import asyncpg

from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_workers, ensure_pool, pool_queue
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.lifecycle import EXIT_NOT_STOPPED, done_before, end_process
from turnstile.common.requests import json_text
from turnstile.common.telemetry.logs import Episodes, WarningRecorder
from turnstile.common.version import installed_version
from turnstile.worker import instrumentation, metrics
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.attempt import Attempts
from turnstile.worker.consumer import Concurrency, PoolConsumer
from turnstile.worker.control import CancelConsumer, ControlQueue
from turnstile.worker.differences import Difference, pools_of_actions
from turnstile.worker.fence import Terms
from turnstile.worker.gateway import Gateway, LogFlusher
from turnstile.worker.lease import Lease, LeaseThread, clock
from turnstile.worker.message_bound import offers_per_message
from turnstile.worker.protocol import Claim, WorkerProtocol, single_connection
from turnstile.worker.runners.in_loop import Run
from turnstile.worker.runners.registry import Runners
from turnstile.worker.schemas import ActionSchemas
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)
_DIFFERS: Final = Episodes(logger, "action_differs")
_POOL_UNUSED: Final = Episodes(logger, "pool_without_actions")
_NONE_IN_POOL: Final = (
    "no action of this worker is in this pool: correct TURNSTILE_WORKER_POOLS, or the pool of an action"
)
_NOT_SIGNED_OFF: Final = Episodes(logger, "not_signed_off")

NOT_REGISTERED: Final = "not connected yet: the worker registers in the database first"

_HAND_BACK_SECONDS: Final = 10.0
"""For stopping, handing back and publishing, after the drain timeout."""
_STOPPED_POLL_SECONDS: Final = 0.02
_SCHEMA_CHARS_MAX: Final = 1000
"""Of a schema, in a line of the log."""
_REGISTER_RETRY_SECONDS: Final = 1.0
_SIDE_TIMEOUTS: Final = BrokerTimeouts(confirm_seconds=2.0)
_BROKER_HEARTBEATS_IN_A_LEASE: Final = 5
_BROKER_HEARTBEAT_SECONDS_MAX: Final = 10
_EXIT_CALL_SECONDS: Final = 2.0
_EXIT_SECONDS: Final = 4.0


class Session:
    """Serves under one worker id."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        actions: Sequence[RegisteredAction],
        runners: Runners,
        *,
        start_notes: WarningRecorder,
        schemas: Mapping[str, ActionSchemas],
        not_ready: Callable[[], str | None],
    ) -> None:
        """Create it in the event loop that serves. `start_notes` is stored with the registration.

        `not_ready` is called in another thread, for each heartbeat: why nothing can run now, or None.
        """
        self._start_notes = start_notes
        self._settings = settings
        self._definitions = definitions = [action.definition for action in actions]
        self._modules = {action.definition.ref: action.module for action in actions}
        self._runners = runners
        self._schemas = schemas
        self.worker_id = WorkerId(str(uuid4()))
        self._control_queue = ControlQueue(self.worker_id, settings.queue_type)
        amqp_url = settings.amqp_url.get_secret_value()
        self._publisher = Publisher(
            amqp_url,
            name=f"worker {settings.worker_name} publisher",
            declare=self._control_queue.declare,
        )
        self._consumers = ConsumerConnection(
            amqp_url,
            name=f"worker {settings.worker_name} consumer",
            timeouts=BrokerTimeouts(heartbeat_seconds=_broker_heartbeat_seconds(settings.lease_duration)),
        )
        self._pools = settings.worker_pools or sorted({d.pool for d in definitions}) or ["default"]
        self._protocol = WorkerProtocol(database, self.worker_id, served_refs=[d.ref for d in definitions])
        self._registration_error: str | None = None
        """Why this worker is not registered yet. It tries again every second."""
        self._is_registered = False
        self._ending = asyncio.Event()
        self._drain_requested = asyncio.Event()
        terms = Terms(lease_seconds=settings.lease_duration, heartbeat_seconds=settings.heartbeat_interval)
        self._lease = Lease(terms, on_lost=self._lose, set_deadline=runners.supervisor.set_deadline)
        self._lease_thread = LeaseThread(
            self._lease,
            settings.database_url.get_secret_value(),
            self.worker_id,
            not_ready=not_ready,
            on_drain=self._drain_requested.set,
        )
        logs = LogFlusher(self._protocol, interval_seconds=settings.log_flush_interval)
        self._gateway = Gateway(self._protocol, self._publisher, _side_publisher(settings), self._lease, logs)
        self._attempts = Attempts(
            self._gateway, runners, event_result_max_bytes=settings.event_result_max_bytes
        )
        self._publish_gauges()

    def _publish_gauges(self) -> None:
        metrics.RUNNING.read_from(lambda: self._attempts.running)
        metrics.CONCURRENCY.read_from(lambda: self._settings.worker_concurrency)
        metrics.LEASE_AGE.read_from(self._lease_age_seconds)
        metrics.LEASE_DURATION.read_from(lambda: self._lease.terms.lease_seconds)
        metrics.PUBLISHER_BLOCKED.read_from(lambda: float(self._publisher.blocked))

    def _lease_age_seconds(self) -> float | None:
        renewed_at = self._lease.evidence.renewed_at
        return None if renewed_at is None else clock() - renewed_at

    @property
    def database_error(self) -> str | None:
        """Why this worker is not registered, or its lease cannot be renewed; None if it can."""
        return self._lease_thread.database_error if self._is_registered else self._registration_error

    @property
    def broker_error(self) -> str | None:
        """Why the broker cannot be used, or None."""
        if not self._is_registered:
            return NOT_REGISTERED
        connected = self._publisher.connected and self._consumers.connected
        return (
            self._publisher.last_error
            or self._consumers.last_error
            or (None if connected else "not connected")
        )

    @property
    def is_publisher_blocked(self) -> bool:
        """Whether the broker accepts no messages: what has finished is published later."""
        return self._publisher.blocked

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, a request to drain, or the loss of the lease."""
        if not await self._begin(stop):
            return
        self._lease_thread.start()
        try:
            await self._serve(stop)
        finally:
            await self._lease_thread.stop()
        if not self._lease.given_up:
            await self._sign_off(stop)
        counts = " ".join(f"{verdict}={count}" for verdict, count in self._attempts.not_applied.items())
        logger.info("session_ended", extra={"worker_id": self.worker_id, "not_applied": counts or "0"})
        if self._drain_requested.is_set():
            # An operator drained this worker: it stays idle until its process is stopped.
            await stop.wait()

    async def _begin(self, stop: asyncio.Event) -> bool:
        """Register the actions and this worker, however long it takes; False when stopped first."""
        refused = Episodes(logger, "not_registered")
        while not stop.is_set():
            try:
                await self._register()
                self._registration_error, self._is_registered = None, True
                refused.works("registration")
                return True
            except (Unavailable, asyncpg.PostgresError) as error:
                self._registration_error = f"does not accept the registration: {error}"
                refused.failed("registration", reason=str(error))
                await _pause(stop)
        return False

    async def _register(self) -> None:
        self._report(await self._protocol.register_actions(self._definitions, self._schemas))
        settings = self._settings
        await self._protocol.register_worker(
            name=settings.worker_name,
            host=socket.gethostname(),
            pid=os.getpid(),
            pools=self._pools,
            concurrency=settings.worker_concurrency,
            offers_per_message=offers_per_message(settings.worker_concurrency),
            lease_seconds=settings.lease_duration,
            version=installed_version(),
            # It learns of the request with its next heartbeat.
            drain_seconds=settings.heartbeat_interval + settings.drain_timeout,
            stop_grace_seconds=settings.stop_grace,
            start_notes=self._start_notes.lines(),
            schemas=self._schemas,
        )

    def _report(self, differences: Sequence[Difference]) -> None:
        """Log which stored definitions differ from the code, and pools without an action of this worker."""
        for difference in differences:
            module = self._modules[difference.ref]
            fields = {"action_ref": difference.ref, "fields": ",".join(difference.fields)}
            if difference.values:
                fields["differences"] = str(difference)
            fields["to_apply_the_code"] = f"'{difference.remedy(module)}'"
            if difference.schemas is not None:
                given, derived = (json_text(schema)[:_SCHEMA_CHARS_MAX] for schema in difference.schemas)
                fields |= {"parameters_schema": given, "schema_of_code": derived}
            _DIFFERS.failed(difference.ref, **fields)
        of_actions = pools_of_actions(self._definitions, differences)
        for pool in self._pools:
            if of_actions and pool not in of_actions:
                fields = {"pool": pool, "pools_of_its_actions": ",".join(of_actions), "reason": _NONE_IN_POOL}
                _POOL_UNUSED.failed(pool, **fields)

    async def _sign_off(self, stop: asyncio.Event) -> None:
        """End the lease, so that whatever is left is reclaimed at once.

        Repeats until the database answers, but tries only once when `stop` is set.
        """
        while True:
            try:
                await self._protocol.sign_off()
                _NOT_SIGNED_OFF.works("lease")
                return
            except (Unavailable, asyncpg.PostgresError) as error:
                _NOT_SIGNED_OFF.failed("lease", reason=str(error))
            if stop.is_set():
                return
            await _pause(stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        cancels = CancelConsumer(self._consumers, self._control_queue, self._attempts)
        pools = self._pool_consumers()
        async with asyncio.TaskGroup() as tasks:
            serving = [
                tasks.create_task(self._publisher.run(), name="publisher"),
                tasks.create_task(self._consumers.run(), name="consumers"),
                tasks.create_task(self._gateway.run(), name="gateway"),
                tasks.create_task(cancels.run(), name="cancels"),
                tasks.create_task(cancels.probe(self._lease), name="broker-probe"),
                *(tasks.create_task(pool.run(), name="pool") for pool in pools),
            ]
            pausing = tasks.create_task(self._pause_at_need(pools), name="pause-at-need")
            logger.info("serving", extra={"worker_id": self.worker_id, "pools": ",".join(self._pools)})
            await _any_of(stop, self._ending, self._drain_requested)
            pausing.cancel()
            if not self._lease.lost:
                await self._drain(pools)
            left_behind, not_stopped = self._runners.in_loop.left_behind, self._attempts.not_stopped
            if (left_behind or not_stopped) and not self._lease.lost:
                _end_process(self._settings, self.worker_id, not_stopped, left_behind)
            for task in serving:
                task.cancel()
            if self._lease.lost:
                await self._all_stopped()

    def _pool_consumers(self) -> list[PoolConsumer]:
        settings = self._settings
        concurrency = Concurrency(settings.worker_concurrency)
        return [
            PoolConsumer(
                self._consumers.subscribe(
                    pool_queue(pool),
                    prefetch=concurrency.limit,
                    declare=partial(ensure_pool, pool=pool, queue_type=settings.queue_type),
                ),
                self._attempts,
                concurrency,
                acknowledge_after_seconds=settings.acknowledge_after,
            )
            for pool in self._pools
        ]

    async def _pause_at_need(self, pools: Sequence[PoolConsumer]) -> None:
        """Leave the offers to other workers while the lease is in doubt, or no child process can start."""
        children = self._runners.children
        while not self._lease.lost:
            await done_before(self._lease.doubted(), children.failing)
            for pool in pools:
                await pool.pause()
            self._attempts.return_unclaimed()
            await children.startable.wait()
            if await self._lease.certain():
                for pool in pools:
                    await pool.resume()

    async def _drain(self, pools: list[PoolConsumer]) -> None:
        """Wait for the attempts in progress, then stop and hand back; return at once if the lease is lost."""
        logger.info("draining", extra={"running": self._attempts.count})
        self._attempts.draining = True
        self._attempts.return_unclaimed()
        async with asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(self._announce_drain(), name="announce-drain")
            lost = tasks.create_task(self._ending.wait(), name="lease-lost")
            drained = tasks.create_task(self._drained(pools), name="drained")
            either: set[asyncio.Future[Any]] = {drained, lost}
            await asyncio.wait(
                either, timeout=self._settings.drain_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not (drained.done() or lost.done()):
                self._attempts.hand_back_all()
                await asyncio.wait(
                    either,
                    timeout=self._settings.stop_grace + _HAND_BACK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            drained.cancel()
            lost.cancel()
            announcing.cancel()

    async def _drained(self, pools: Sequence[PoolConsumer]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for pool in pools:
                tasks.create_task(pool.drain(), name="drain-pool")
        await self._gateway.all_published()

    async def _announce_drain(self) -> None:
        # Advisory: without it, the capacity of this worker is counted until it signs off.
        with suppress(Unavailable):
            await self._protocol.start_drain()

    def _lose(self) -> None:
        """Kill everything at once: the lease is lost."""
        metrics.LEASES_LOST.add()
        self._attempts.lose_all()
        self._ending.set()

    async def _all_stopped(self) -> None:
        """Wait until nothing of this id runs; if that takes too long, the lease thread ends the process."""
        while self._attempts.running or self._runners.in_loop.left_behind:  # noqa: ASYNC110  (no event counts both)
            await asyncio.sleep(_STOPPED_POLL_SECONDS)
        self._lease.all_stopped.set()


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), _REGISTER_RETRY_SECONDS)


async def _any_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait(), name="wait") for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _side_publisher(settings: WorkerSettings) -> Publisher:
    """Return the publisher of messages that may be dropped."""
    return Publisher(
        settings.amqp_url.get_secret_value(),
        name=f"worker {settings.worker_name} best-effort",
        declare=partial(declare_workers, queue_type=settings.queue_type),
        timeouts=_SIDE_TIMEOUTS,
    )


def _broker_heartbeat_seconds(lease_seconds: float) -> int:
    """Return the heartbeat interval of the consumers' connection.

    The broker closes the connection of a stopped worker after two or three intervals, and redelivers its
    offers to other workers: well before the lease ends, since until then each offer holds a slot.
    """
    return max(1, min(_BROKER_HEARTBEAT_SECONDS_MAX, round(lease_seconds / _BROKER_HEARTBEATS_IN_A_LEASE)))


def _end_process(
    settings: WorkerSettings, worker_id: WorkerId, claims: Sequence[Claim], running: Collection[Run]
) -> NoReturn:
    """Hand back `claims`, sign off and end the process, which a coroutine or a thread keeps running.

    Call it in the event loop, which it blocks: so no coroutine does anything between the hand-back and the
    end of the process. A thread may, for that round trip. If the database does not answer, the lease runs
    out, and the executions are reclaimed as from any dead worker (P6).
    """

    def hand_back() -> None:
        fields = {
            "worker_id": worker_id,
            "executions": ",".join(str(execution_id) for execution_id, _ in sorted(running)),
            "exit_code": EXIT_NOT_STOPPED,
        }
        logger.critical("not_stopped_in_time", extra=fields)
        asyncio.run(_hand_back_and_sign_off(settings, worker_id, claims))

    end_process(hand_back, seconds=_EXIT_SECONDS)


async def _hand_back_and_sign_off(
    settings: WorkerSettings, worker_id: WorkerId, claims: Sequence[Claim]
) -> None:
    # The worker's own connections belong to the blocked event loop.
    url = settings.database_url.get_secret_value()
    database = single_connection(url, "leaving", _EXIT_CALL_SECONDS, give_up_seconds=_EXIT_CALL_SECONDS)
    await database.open()
    protocol = WorkerProtocol(database, worker_id)
    try:
        if claims:
            handed_back = await protocol.hand_back([claim.offer for claim in claims])
            for claim in claims:
                if claim.execution_id in handed_back:
                    instrumentation.handed_back(claim)
        await protocol.sign_off()
    except (Unavailable, asyncpg.PostgresError) as error:
        _NOT_SIGNED_OFF.failed("lease", reason=str(error))
