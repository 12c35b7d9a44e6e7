"""The composition root of `executor serve`: builds the parts, runs them, stops them in order.

The leader has a process of its own; this one serves HTTP, and writes what is beside the turns: reports,
webhooks, dead letters, retention. Start: HTTP and the connections first, so that /readyz reports what is
missing. Stop: take nothing new, finish what is decided, close.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Final

import asyncpg
import uvicorn
from fastapi import FastAPI

from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.errors import BLOCKED
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTOR_REPORTS, declare_executor
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.http import HttpServer
from turnstile.common.lifecycle import done_before
from turnstile.common.telemetry.metrics import LoopLag
from turnstile.executor.api.app import create_app
from turnstile.executor.api.parts import ApiParts
from turnstile.executor.asking.asker import Asker
from turnstile.executor.asking.broker_rpc import BrokerAsker
from turnstile.executor.dead_letters.drain import Drain
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.history.reports import ReportWriter
from turnstile.executor.inbox import Inbox
from turnstile.executor.metrics import LOOP_LAG, PUBLISHER_BLOCKED
from turnstile.executor.report_listener import ReportListener
from turnstile.executor.retention import Pruner
from turnstile.executor.serving import LeaderService, leader_settings, serve_both
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.stored_tokens import AUDIT_LOG_RIGHTS, changeable_audit_log
from turnstile.executor.webhooks.deliverer import Deliverer
from turnstile.migrations.schema_check import schema_state

logger = logging.getLogger(__name__)

_COMMANDS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory of commands that wait to be stored; further ones are refused with 503."""
_REPORTS_PREFETCH: Final = 1000
_REPORT_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger report is refused by its size alone."""


async def warn_of_changeable_audit_log(database: Database, *, has_tokens: bool) -> None:
    """Log a warning if the executor's own account may change the audit log."""
    with suppress(Unavailable, asyncpg.PostgresError):
        rights = await database.fetchrow(AUDIT_LOG_RIGHTS)
        if (reason := changeable_audit_log(dict(rights or {}), has_tokens=has_tokens)) is not None:
            logger.warning("audit_log_changeable", extra={"reason": reason})


class ExecutorService:
    """One executor: this process, and its child that leads or waits until it can."""

    def __init__(self, settings: ExecutorSettings, listener: socket.socket) -> None:
        """Serve HTTP on `listener`, and close it at the end."""
        self.settings = settings
        self._listener = listener
        amqp_url, queue_type = settings.amqp_url.get_secret_value(), settings.queue_type
        self._declare = lambda channel: declare_executor(channel, queue_type=queue_type)
        self._database = Database(
            settings.database_url.get_secret_value(),
            application_name="turnstile executor",
            connections_max=settings.database_connections,
            schema_check=schema_state,
        )
        self._inbox = Inbox(self._database, waiting_bytes_max=_COMMANDS_BYTES_MAX)
        self._leader = LeaderService(leader_settings(settings))
        self._broker_asker = BrokerAsker(amqp_url)
        self._asker = Asker(self._leader.local, self._broker_asker)
        # Replays dead letters.
        self._publisher = Publisher(amqp_url, name="executor publisher", declare=self._declare)
        self._report_consumer = ConsumerConnection(amqp_url, name="executor report consumer")
        self._webhooks = Deliverer(settings, self._database)
        self._pruner = Pruner(self._database, settings)
        self._drain = Drain(settings, self._database, make_room=self._pruner.prune_dead_letters)
        self._http_ended = asyncio.Event()
        self._loop_lag = LoopLag()
        LOOP_LAG.read_from(self._loop_lag.worst_seconds)
        PUBLISHER_BLOCKED.read_from(lambda: float(self._is_blocked()))

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then end in order."""
        await serve_both(self._serve, self._leader, stop, drain_seconds=self.settings.drain_timeout)
        await self._database.close()
        logger.info("stopped")

    async def _serve(self, stop: asyncio.Event) -> None:
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

    def readiness(self) -> dict[str, str | None]:
        """Return, for each server and the leader's process, None or why it cannot be used."""
        connections = (self._publisher, self._report_consumer)
        broker = next((each.last_error for each in connections if each.last_error), None)
        if broker is None and not all(each.connected for each in connections):
            broker = "not connected"
        status = self._leader.status
        if broker is None and status is not None:
            broker = status.broker_trouble
        return {"database": self._database.last_error, "broker": broker, "leader": self._leader.trouble()}

    def degraded(self) -> dict[str, str]:
        """Return what does not work while the servers can be reached, and why."""
        notice = self._database.schema_notice
        refused = self._database.refusals.reason
        found = {"schema": notice, "database": refused, "broker": BLOCKED if self._is_blocked() else None}
        return {part: why for part, why in found.items() if why is not None}

    def _is_blocked(self) -> bool:
        # The broker announces an alarm to a connection that publishes: this one, or the leader's.
        status = self._leader.status
        return self._publisher.blocked or (status is not None and status.broker_blocks)

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background: list[asyncio.Task[Any]] = [
                tasks.create_task(self._publisher.run(), name="publisher"),
                tasks.create_task(self._broker_asker.run(), name="asker"),
                tasks.create_task(self._report_consumer.run(), name="report-consumer"),
                tasks.create_task(self._loop_lag.run(), name="loop-lag"),
            ]
            if await done_before(self._database.open(), stop):
                has_tokens = self.settings.accepted_tokens().required
                await warn_of_changeable_audit_log(self._database, has_tokens=has_tokens)
                background.append(tasks.create_task(self._inbox.run(), name="inbox"))
                background.append(tasks.create_task(self._reports().run(), name="reports"))
                background.append(tasks.create_task(self._pruner.run(), name="retention"))
                background.append(tasks.create_task(self._database.watch_schema(), name="watch-schema"))
                webhooks = tasks.create_task(self._webhooks.run(stop), name="webhooks")
                background.append(webhooks)
                host, port = self._listener.getsockname()[:2]
                logger.info("serving", extra={"host": host, "port": port})
                await self._drain.run(stop, declare=self._declare)
                await asyncio.wait({webhooks}, timeout=self.settings.drain_timeout)
            # HTTP requests under way need the inbox and the publisher.
            await self._http_ended.wait()
            for task in background:
                task.cancel()

    def _reports(self) -> ReportListener:
        subscription = self._report_consumer.subscribe(
            EXECUTOR_REPORTS,
            prefetch=_REPORTS_PREFETCH,
            declare=self._declare,
            byte_bounds=ByteBounds(held=2 * _REPORT_BYTES_MAX, one=_REPORT_BYTES_MAX),
        )
        return ReportListener(subscription, ReportWriter(self._database))

    def application(self, stop: asyncio.Event) -> FastAPI:
        """Return the HTTP API over this service's parts; its streams end at `stop`."""
        parts = ApiParts.over(
            self.settings,
            self._database,
            self._asker,
            inbox=self._inbox,
            dead_letters=DeadLetters(self._database, self._publisher),
            health=self,
            stopping=stop,
        )
        return create_app(self.settings, parts)

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
