"""Webhooks and the audit log are deleted by age; settings of retention are read."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from pydantic import ValidationError

from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import ExecutorSettings

_NOTED = """
INSERT INTO ledger.audit_log (verb, subject_kind, subject, before, after, recorded_at)
SELECT 'paused', 'action', n::text, '{}', '{}', now() - n * interval '1 day' FROM generate_series(1, 40) n
"""
_WEBHOOKS = """
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at, state, ended_at)
SELECT n, 'u', 'o', now() - interval '9 d', now() - interval '9 d',
       CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END,
       CASE WHEN n % 2 = 1 THEN now() - interval '8 d' END
FROM generate_series(1, 10) n
"""


def pruner(database: Database, **settings: Any) -> Pruner:
    return Pruner(database, ExecutorSettings(**settings), late_copy_seconds=0.0)


async def test_the_audit_log_is_kept_for_at_least_thirty_days(database: Database) -> None:
    await database.fetch(_NOTED)
    # Whatever an executor asks for.
    assert await database.fetchval("SELECT ledger.prune_audit_log(60, 3)") == 3
    assert await pruner(database, retention_audit_log="35d").prune_audit_log() == 3
    left = await database.fetch("SELECT subject FROM ledger.audit_log ORDER BY id")
    assert [int(row["subject"]) for row in left] == list(range(1, 35))


async def test_only_workers_that_are_gone_for_long_are_deleted(database: Database) -> None:
    await database.fetch(
        "INSERT INTO ledger.worker (worker_id, session, secret_hash, name, pools, concurrency, lease_seconds,"
        " is_taking, is_draining, about, registered_at, heard_at, gone_at, gone_why, held_ids)"
        " SELECT w.id, 1, '', 'n', '{p}', 1, 30, false, false, '{}', now() - interval '9 d', now(),"
        " now() - w.ago::interval, w.why, CASE WHEN w.why IS NOT NULL THEN '{}'::bigint[] END"
        " FROM (VALUES ('lost', '8 d', 'lost'), ('left', '8 d', 'stopped'), ('young', '1 h', 'lost'),"
        "              ('lives', NULL, NULL)) w(id, ago, why)"
    )
    assert await pruner(database).prune_workers() == 2
    rows = await database.fetch("SELECT worker_id FROM ledger.worker ORDER BY 1")
    assert [row["worker_id"] for row in rows] == ["lives", "young"]


async def test_counts_of_a_minute_are_kept_for_a_week(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention._ROWS_MAX", 2)
    await database.fetch(
        "INSERT INTO ledger.action_minute SELECT now() - n * interval '1 day', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,"
        " 'a', 0, 0 FROM generate_series(0, 11) n"
    )
    assert await pruner(database).prune_history() == 5
    assert await pruner(database, retention_history="25h").prune_history() == 5
    assert await database.fetchval("SELECT count(*) FROM ledger.action_minute") == 2


async def test_old_webhooks_fail_or_are_deleted_in_several_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention._ROWS_MAX", 2)
    await database.fetch(_WEBHOOKS)
    assert await pruner(database).prune_webhooks() == 10
    rows = await database.fetch("SELECT state FROM ledger.webhook")
    assert [row["state"] for row in rows] == ["failed"] * 5


async def test_what_fails_delays_nothing_else(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Pruner) -> int:
        raise asyncpg.InsufficientPrivilegeError("permission denied")

    monkeypatch.setattr(Pruner, "prune_executions", refuse)
    await database.fetch(_WEBHOOKS)
    running = asyncio.create_task(pruner(database, watchdog_interval=0.05).run())

    async def are_pruned() -> bool:
        return bool(await database.fetchval("SELECT count(*) = 5 FROM ledger.webhook"))

    await until(are_pruned, "the webhooks are pruned")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert "retention_failed" in [record.getMessage() for record in caplog.records]


def test_an_age_is_a_duration_or_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "90d")
    assert ExecutorSettings().retention_age == 90 * 86_400
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", " Forever ")
    assert ExecutorSettings().retention_age is None
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "never")
    with pytest.raises(ValidationError, match="not a duration"):
        ExecutorSettings()
