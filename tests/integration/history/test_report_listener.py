"""Logs and progress reach the rows by message, also across an outage of the database."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from tests.integration.history.conftest import AttemptOf
from tests.integration.history.test_reports import log_of, piece
from tests.support.brokers import ready_messages, running
from tests.support.ledger import session_on
from tests.support.traffic import in_background, until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTERS, EXECUTOR, EXECUTOR_REPORTS, declare_executor
from turnstile.common.database import Database
from turnstile.common.report_wire import EXECUTION_LOG, encode_log
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.worker_protocol import Sender
from turnstile.executor import report_listener
from turnstile.executor.history.executions import Executions
from turnstile.executor.history.reports import ReportWriter
from turnstile.executor.report_listener import ReportListener
from turnstile.localservers import DatabaseServer

SENDER = Sender(worker_id="w", session=1, secret="secret")


def reported(body: bytes, kind: str = EXECUTION_LOG) -> Outgoing:
    return Outgoing(
        exchange=EXECUTOR, routing_key=EXECUTOR_REPORTS, body=body, type=kind, message_id="m", app_id="worker"
    )


@asynccontextmanager
async def listening(amqp_url: str, database: Database) -> AsyncIterator[tuple[Publisher, ReportListener]]:
    consumer = ConsumerConnection(amqp_url, name="reports")
    subscription = consumer.subscribe(EXECUTOR_REPORTS, prefetch=100, declare=declare_executor)
    publisher = Publisher(amqp_url, name="worker", declare=declare_executor)
    listener = ReportListener(subscription, ReportWriter(database))
    async with running(consumer, publisher), in_background(listener.run(), name="reports"):
        yield publisher, listener


async def test_a_log_is_written_and_forgotten_by_the_broker(
    amqp_url: str, database: Database, executions: Executions, first: AttemptOf
) -> None:
    async with listening(amqp_url, database) as (publisher, listener):
        for start, text in ((0, "one "), (4, "two"), (4, "two")):
            await publisher.publish([reported(encode_log(SENDER, [piece(first, start, text)]))])

        async def is_written() -> bool:
            return await log_of(executions, 2) == "one two"

        await until(is_written, "the log is written")
    assert listener.refused == 0
    assert await ready_messages(amqp_url, EXECUTOR_REPORTS) == 0


async def test_what_cannot_be_read_is_a_dead_letter(
    amqp_url: str, database: Database, first: AttemptOf
) -> None:
    async with listening(amqp_url, database) as (publisher, listener):
        await publisher.publish([reported(b"{"), reported(b"{}", "execution.unknown")])

        async def are_dead() -> bool:
            return await ready_messages(amqp_url, DEAD_LETTERS) == 2

        await until(are_dead, "the messages are dead letters")
    assert listener.invalid == 2


async def test_a_number_that_the_database_cannot_hold_is_a_dead_letter_and_the_others_are_written(
    amqp_url: str, database: Database, executions: Executions, first: AttemptOf
) -> None:
    forged = replace(piece(first, 0, "forged"), execution_id=2**63)
    async with listening(amqp_url, database) as (publisher, listener):
        await publisher.publish(
            [reported(encode_log(SENDER, [each])) for each in (forged, piece(first, 0, "kept"))]
        )

        async def are_apart() -> bool:
            dead = await ready_messages(amqp_url, DEAD_LETTERS)
            return dead == 1 and await log_of(executions, 2) == "kept"

        await until(are_apart, "one message is a dead letter, and one is written")
    assert listener.invalid == 1


async def test_what_the_database_refuses_is_written_once_it_is_mended(
    amqp_url: str, database: Database, executions: Executions, first: AttemptOf, database_url: str
) -> None:
    async with listening(amqp_url, database) as (publisher, _), session_on(database_url) as session:
        await session.execute("ALTER TABLE ledger.log RENAME TO log_elsewhere")
        await publisher.publish([reported(encode_log(SENDER, [piece(first, 0, "kept")]))])
        await until(lambda: "ledger.log" in (database.refusals.reason or ""), "the database refuses it")
        await session.execute("ALTER TABLE ledger.log_elsewhere RENAME TO log")

        async def is_written() -> bool:
            return await log_of(executions, 2) == "kept"

        await until(is_written, "the log is written")
        assert database.refusals.reason is None


async def test_an_outage_of_the_database_loses_nothing(
    amqp_url: str,
    database: Database,
    executions: Executions,
    first: AttemptOf,
    *,
    postgresql: DatabaseServer,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An outage of a test before in this process would hide the line of this one.
    logger = logging.getLogger(report_listener.__name__)
    monkeypatch.setattr(report_listener, "_POSTPONED", Episodes(logger, "reports_postponed"))
    name = urlsplit(database_url).path[1:]
    end_waiting = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = '{name}' AND wait_event_type = 'Lock'"
    )

    def is_postponed() -> bool:
        postgresql.execute(end_waiting)
        return "reports_postponed" in caplog.messages

    async with listening(amqp_url, database) as (publisher, _), session_on(database_url) as session:
        await session.execute("BEGIN; LOCK TABLE ledger.log")
        await publisher.publish([reported(encode_log(SENDER, [piece(first, 0, "kept")]))])
        await until(is_postponed, "the session of the write has ended")
        await session.execute("ROLLBACK")

        async def is_written() -> bool:
            return await log_of(executions, 2) == "kept"

        await until(is_written, "the log is written")
