"""The composition root of `executor serve`: builds the parts, runs them, stops them in order.

Start: HTTP and the connections first (so that /readyz reports what is missing), then the listeners.
Stop: take nothing new, finish what is decided, close.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Final

import asyncpg
import uvicorn
from fastapi import FastAPI

from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.errors import BLOCKED
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_REQUESTS, declare_executor
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.gathering import GatherWindow, ProcessorWait
from turnstile.common.http import HttpServer
from turnstile.common.lifecycle import done_before
from turnstile.common.requests import request_bytes_max
from turnstile.common.telemetry.metrics import LoopLag
from turnstile.executor.api.app import create_app
from turnstile.executor.batch_consumer import consume_batches
from turnstile.executor.cancellation import Canceller, EarlyCancels
from turnstile.executor.completion_listener import CompletionListener
from turnstile.executor.dead_letters.drain import Drain
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import LOOP_LAG, PUBLISHER_BLOCKED
from turnstile.executor.operations import Operations, Submissions
from turnstile.executor.parameter_schemas import ParameterSchemas
from turnstile.executor.pool_capacity import PoolRefresher
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.rate_timer import RateTimer
from turnstile.executor.request_listener import RequestListener
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.sql import query
from turnstile.executor.submission_listener import SubmissionListener
from turnstile.executor.sweep_turns import SweepTurns
from turnstile.executor.watchdog import Watchdog
from turnstile.executor.webhooks.deliverer import Deliverer
from turnstile.migrations.schema_check import schema_state

logger = logging.getLogger(__name__)

_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger message is refused by its size alone. At most twice as much is held of each queue."""
_SUBMISSIONS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory of HTTP submissions that wait for their batch; further ones are refused with 503."""

_CONSUMER_TIMEOUTS: Final = BrokerTimeouts(heartbeat_seconds=2)
"""One executor admits: the broker closes a frozen one's connection after two or three heartbeats."""

_BEST_EFFORT_TIMEOUTS: Final = BrokerTimeouts(confirm_seconds=2.0)
"""A reply queue that never confirms delays the other replies for this long, once."""


async def warn_of_changeable_audit_log(database: Database, *, has_tokens: bool) -> None:
    """Log a warning if the executor's own account may change the audit log.

    Only where callers have names: without tokens, of the settings or in the database, as on a developer's
    machine, the rows prove nothing about anybody.
    """
    with suppress(Unavailable, asyncpg.PostgresError):
        rights = await database.fetchrow(query("audit_log_rights"))
        if rights is not None and rights["may_change"] and (has_tokens or rights["has_tokens"]):
            reason = (
                f"the database role {rights['role']!r} of this executor may change and delete rows of the "
                "audit log; run 'executor setup-permissions', and start the executor with the account in its "
                "executor.env"
            )
            logger.warning("audit_log_changeable", extra={"reason": reason})


class ExecutorService:
    """One executor process."""

    def __init__(self, settings: ExecutorSettings, listener: socket.socket) -> None:
        """Serve HTTP on `listener`, and close it at the end."""
        self.settings = settings
        self._listener = listener
        amqp_url = settings.amqp_url.get_secret_value()
        queue_type = settings.queue_type
        self._declare = lambda channel: declare_executor(channel, queue_type=queue_type)
        self._database = Database(
            settings.database_url.get_secret_value(),
            application_name="turnstile executor",
            connections_max=settings.database_connections,
            schema_check=schema_state,
        )
        self._publisher = Publisher(amqp_url, name="executor publisher", declare=self._declare)
        # A connection each: a huge request, dropped while it arrives, delays no completion.
        self._request_consumer = ConsumerConnection(
            amqp_url, name="executor request consumer", timeouts=_CONSUMER_TIMEOUTS
        )
        self._completion_consumer = ConsumerConnection(
            amqp_url, name="executor completion consumer", timeouts=_CONSUMER_TIMEOUTS
        )
        self._schemas = ParameterSchemas(ExecutorProtocol(self._database))
        self._queue_manager = QueueManager(
            self._database, lock_timeout_seconds=settings.lock_timeout, schemas=self._schemas
        )
        replies = Publisher(
            amqp_url, name="executor best-effort", declare=self._declare, timeouts=_BEST_EFFORT_TIMEOUTS
        )
        self._dispatcher = Dispatcher(self._publisher, self._queue_manager, queue_type, replies)
        self._rate_timer = RateTimer(
            self._queue_manager.protocol,
            self._dispatcher,
            interval_seconds=settings.watchdog_interval,
        )
        self._turns = SweepTurns(settings.watchdog_interval)
        self._pool_refresher = PoolRefresher(self._queue_manager, self._dispatcher, self._turns)
        self._operations = Operations(self._queue_manager, self._dispatcher)
        self._submissions = Submissions(
            self._operations.admit, items_max=settings.batch_max, waiting_bytes_max=_SUBMISSIONS_BYTES_MAX
        )
        self._http_ended = asyncio.Event()
        self._loop_lag = LoopLag()
        LOOP_LAG.read_from(self._loop_lag.worst_seconds)
        PUBLISHER_BLOCKED.read_from(lambda: float(self._publisher.blocked))
        self._create_listeners()

    def _create_listeners(self) -> None:
        """Create what receives messages, submissions and webhooks."""
        settings = self.settings
        self._canceller = Canceller(self._queue_manager)
        self._early_cancels = EarlyCancels(self._database, self._canceller, self._dispatcher)
        self._requests = RequestListener(
            self._queue_manager,
            self._canceller,
            self._early_cancels,
            self._dispatcher,
            parameters_bytes_max=settings.parameters_bytes_max,
        )
        self._database_submissions = SubmissionListener(
            settings.database_url.get_secret_value(),
            self._queue_manager,
            self._dispatcher,
            batch_max=settings.batch_max,
            parameters_bytes_max=settings.parameters_bytes_max,
            on_round=self._turns.received,
        )
        self._webhooks = Deliverer(settings, self._database)
        self._completions = CompletionListener(
            self._queue_manager, self._dispatcher, on_callbacks=self._webhooks.due
        )
        self._drain = Drain(
            settings, self._database, make_room=Pruner(self._database, settings).prune_dead_letters
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then end in order."""
        server = self._http_server(stop)
        async with asyncio.TaskGroup() as tasks:
            http = tasks.create_task(server.serve(sockets=[self._listener]), name="http")
            work = tasks.create_task(self._work(stop), name="work")
            await stop.wait()
            server.should_exit = True
            await asyncio.wait({http}, timeout=self.settings.drain_timeout)
            self._http_ended.set()
            await asyncio.wait({work}, timeout=self.settings.drain_timeout)
            work.cancel()
        await self._database.close()
        logger.info("stopped")

    def readiness(self) -> dict[str, str | None]:
        """Return, for each server, None or why it cannot be reached."""
        connections = (self._publisher, self._request_consumer, self._completion_consumer)
        broker = next((each.last_error for each in connections if each.last_error), None)
        connected = all(each.connected for each in connections)
        return {
            "database": self._database.last_error,
            "broker": broker or (None if connected else "not connected"),
        }

    def degraded(self) -> dict[str, str]:
        """Return what does not work while the servers can be reached, and why."""
        notice = self._database.schema_notice
        schema = {} if notice is None else {"schema": notice}
        broker = {"broker": BLOCKED} if self._publisher.blocked else {}
        pools = {f"pool {pool}": reason for pool, reason in self._dispatcher.pools.unusable.items()}
        return schema | broker | pools

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background: list[asyncio.Task[Any]] = [
                tasks.create_task(self._publisher.run(), name="publisher"),
                tasks.create_task(self._request_consumer.run(), name="request-consumer"),
                tasks.create_task(self._completion_consumer.run(), name="completion-consumer"),
                tasks.create_task(self._submissions.run(), name="submissions"),
                tasks.create_task(self._loop_lag.run(), name="loop-lag"),
            ]
            if await done_before(self._database.open(), stop):
                has_tokens = self.settings.accepted_tokens().required
                await warn_of_changeable_audit_log(self._database, has_tokens=has_tokens)
                background.append(tasks.create_task(self._dispatcher.run(), name="dispatcher"))
                background.append(tasks.create_task(self._rate_timer.run(), name="rate-timer"))
                # Before the first request: until they are counted the pools have no limit.
                await self._pool_refresher.refresh()
                background.append(tasks.create_task(self._pool_refresher.run(), name="pool-refresher"))
                background.append(tasks.create_task(self._schemas.run(), name="schemas"))
                background.append(tasks.create_task(self._database.watch_schema(), name="watch-schema"))
                background.append(tasks.create_task(self._watchdog().run(), name="watchdog"))
                webhooks = tasks.create_task(self._webhooks.run(stop), name="webhooks")
                background.append(webhooks)
                host, port = self._listener.getsockname()[:2]
                logger.info("serving", extra={"host": host, "port": port})
                await self._listen(stop)
                self._webhooks.due()
                await asyncio.wait({webhooks}, timeout=self.settings.drain_timeout)
            # HTTP requests under way need the submissions and the publisher.
            await self._http_ended.wait()
            await self._dispatcher.finish(self.settings.drain_timeout)
            for task in background:
                task.cancel()

    async def _listen(self, stop: asyncio.Event) -> None:
        batch_max, best_effort = self.settings.batch_max, self._dispatcher.best_effort
        async with asyncio.TaskGroup() as tasks:
            requests = self._subscribe(self._request_consumer, EXECUTOR_REQUESTS)
            tasks.create_task(
                consume_batches(
                    requests, self._requests, best_effort=best_effort, batch_max=batch_max, stop=stop
                ),
                name="requests",
            )
            # One executor settles while the others stand by: two would take halves of every batch, and
            # wait for each other's locks.
            completions = self._subscribe(
                self._completion_consumer, EXECUTOR_COMPLETIONS, earliest_first=True
            )
            tasks.create_task(
                consume_batches(
                    completions,
                    self._completions,
                    best_effort=best_effort,
                    batch_max=batch_max,
                    stop=stop,
                    window=GatherWindow(ProcessorWait()),
                ),
                name="completions",
            )
            tasks.create_task(self._database_submissions.run(stop), name="database-submissions")
            tasks.create_task(self._drain.run(stop, declare=self._declare), name="dead-letters")

    def _subscribe(
        self, consumer: ConsumerConnection, queue: str, *, earliest_first: bool = False
    ) -> Subscription:
        prefetch = self.settings.batch_max * 4  # the batch being published, the one being processed, the next
        # Every acceptable request fits; by default a message above 16 MiB is refused by its size alone.
        one_bytes = max(_MESSAGE_BYTES_MAX, request_bytes_max(self.settings.parameters_bytes_max))
        return consumer.subscribe(
            queue,
            prefetch=prefetch,
            declare=self._declare,
            byte_bounds=ByteBounds(held=2 * one_bytes, one=one_bytes),
            earliest_first=earliest_first,
        )

    def _watchdog(self) -> Watchdog:
        return Watchdog(self.settings, self._database, self._queue_manager, self._dispatcher, self._turns)

    def application(self, stop: asyncio.Event) -> FastAPI:
        """Return the HTTP API over this service's parts; its streams end at `stop`."""
        return create_app(
            settings=self.settings,
            database=self._database,
            operations=self._operations,
            submissions=self._submissions,
            dead_letters=DeadLetters(self._database, self._publisher),
            health=self,
            stopping=stop,
        )

    def _http_server(self, stop: asyncio.Event) -> uvicorn.Server:
        config = uvicorn.Config(
            self.application(stop),
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
            # Longer than clients and proxies keep an idle connection. A server that closes it first makes
            # a request in transit fail.
            timeout_keep_alive=75,
            ssl_certfile=self.settings.http_tls_cert,
            ssl_keyfile=self.settings.http_tls_key,
        )
        return HttpServer(config)
