"""Logs and progress of running attempts are stored once, and only of the sender's own attempts."""

import hashlib
from typing import Final

import pytest

from tests.integration.history.conftest import HASH, AttemptOf
from tests.integration.history.test_executions import running
from tests.support.ledger import Led, ended, granted, session_on
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import ExecutionId, Grant
from turnstile.common.report_wire import LogPiece, ProgressReport
from turnstile.executor.history.executions import Executions, LogPosition
from turnstile.executor.history.reports import ReportWriter
from turnstile.executor.leader.records import AttemptRow
from turnstile.executor.sql import statements

_TUPLES_READ: Final = """
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
WHERE schemaname = 'ledger' AND relname = 'granted'
"""


@pytest.fixture
def writer(database: Database) -> ReportWriter:
    return ReportWriter(database)


def piece(of: AttemptOf, start: int, text: str) -> LogPiece:
    return LogPiece(execution_id=of.execution_id, attempt=of.attempt, grant=of.grant, start=start, text=text)


def progress(
    of: AttemptOf, at: float, done: float, total: float | None = None, message: str | None = None
) -> ProgressReport:
    return ProgressReport(
        execution_id=of.execution_id, attempt=of.attempt, grant=of.grant, at=at, done=done, total=total,
        message=message,
    )  # fmt: skip


async def log_of(executions: Executions, execution_id: int) -> str:
    page = await executions.logs(ExecutionId(execution_id), attempt=None, after=LogPosition(), limit=100)
    assert page is not None
    return "".join(entry.text for entry in page.items)


async def test_pieces_of_a_first_attempt_are_its_log(
    writer: ReportWriter, executions: Executions, first: AttemptOf
) -> None:
    assert await writer.append_logs("w", HASH, [piece(first, 0, "one\n"), piece(first, 4, "two\n")]) == 0
    assert await writer.append_logs("w", HASH, [piece(first, 4, "two\n"), piece(first, 8, "\0")]) == 0
    assert await log_of(executions, 2) == "one\ntwo\n\N{REPLACEMENT CHARACTER}"


async def test_a_log_is_followed_from_a_position(
    writer: ReportWriter, executions: Executions, first: AttemptOf, led: Led
) -> None:
    await writer.append_logs("w", HASH, [piece(first, 0, "one")])
    read = await executions.logs(ExecutionId(2), attempt=None, after=LogPosition(), limit=100)
    assert read is not None
    assert not read.is_ended
    await writer.append_logs("w", HASH, [piece(first, 3, "two")])
    await led.write(ended=[ended(2)])
    read = await executions.logs(ExecutionId(2), attempt=None, after=read.position, limit=100)
    assert read is not None
    assert ([entry.text for entry in read.items], read.is_ended) == (["two"], True)


async def test_a_missing_piece_is_named(
    writer: ReportWriter, executions: Executions, first: AttemptOf
) -> None:
    await writer.append_logs("w", HASH, [piece(first, 5, "later")])
    assert await log_of(executions, 2) == "[5 characters before this were cut]\nlater"


async def test_only_the_end_of_a_long_log_is_kept(
    writer: ReportWriter, executions: Executions, first: AttemptOf
) -> None:
    text = "x" * 40_000
    for number in range(4):
        await writer.append_logs("w", HASH, [piece(first, number * len(text), text)])
    kept = await log_of(executions, 2)
    assert kept.startswith("[80000 characters before this were cut]")
    assert kept.count("x") == 80_000


async def test_the_newest_progress_counts(
    writer: ReportWriter, executions: Executions, led: Led, first: AttemptOf
) -> None:
    await led.write(live=[running(1, led.epoch, worker_id="w")])
    of = AttemptOf(execution_id=1, attempt=2, grant=Grant(led.epoch, 9))
    reports = [progress(of, at, done, 4.0, "m") for at, done in ((10.0, 1.0), (12.0, 3.0), (11.0, 2.0))]
    assert await writer.report_progress("w", HASH, reports) == 0
    assert await writer.report_progress("w", HASH, [progress(of, 11.0, 2.0)]) == 0
    record = await executions.execution(ExecutionId(1))
    assert record is not None
    shown = record.attempts[-1].progress
    assert shown is not None
    assert (shown.done, shown.total, shown.message) == (3, 4, "m")


@pytest.mark.parametrize("sender", ["v", "unknown"])
async def test_pieces_of_others_are_refused(
    writer: ReportWriter, executions: Executions, first: AttemptOf, sender: str
) -> None:
    assert await writer.append_logs(sender, HASH, [piece(first, 0, "forged")]) == 1
    assert await log_of(executions, 2) == ""


async def test_a_stolen_name_without_its_secret_is_refused(writer: ReportWriter, first: AttemptOf) -> None:
    other = hashlib.sha256(b"guess").digest()
    assert await writer.append_logs("w", other, [piece(first, 0, "forged")]) == 1
    assert await writer.report_progress("w", other, [progress(first, 1.0, 1.0)]) == 1


async def test_late_pieces_of_ended_attempts_are_stored(
    writer: ReportWriter, executions: Executions, led: Led, first: AttemptOf
) -> None:
    over = AttemptRow(
        execution_id=3, attempt=1, outcome="failed", worker_id="w", scheduled_at=102.0, started_at=103.0,
        ended_at=104.0, error=None,
    )  # fmt: skip
    await led.write(ended=[ended(2)], attempts=[over], live=[running(3, led.epoch)])
    third = AttemptOf(execution_id=3, attempt=1, grant=Grant(led.epoch, 3))
    assert await writer.append_logs("w", HASH, [piece(first, 0, "late"), piece(third, 0, "later")]) == 0
    assert (await log_of(executions, 2), await log_of(executions, 3)) == ("late", "later")


@pytest.mark.usefixtures("database")
async def test_the_look_up_reads_no_dead_rows(led: Led, first: AttemptOf, database_url: str) -> None:
    async with session_on(database_url) as reader, session_on(database_url) as session:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM ledger.granted")
        for number in range(100):
            counter = 10 * number + 10
            await led.write(granted=[granted(led.epoch, counter, 1)])
            await led.write(grants_over=[(led.epoch, counter)])

        async def tuples_read() -> int:
            # What a session has counted is shown once it has been flushed.
            await session.execute("SELECT pg_stat_force_next_flush()")
            return int(await session.fetchval(_TUPLES_READ))

        before = await tuples_read()
        of = [first.execution_id], [first.attempt], [first.grant.epoch], [first.grant.counter]
        assert (
            await session.fetchval(
                statements("history/history.sql")["append_logs"], "w", HASH, *of, [0], ["text"], 100
            )
            == 0
        )
        assert await tuples_read() - before < 10
