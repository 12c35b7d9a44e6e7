"""Ended executions with webhooks, and deliverers that run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.webhooks.deliverer import Deliverer

SETTINGS: dict[str, Any] = {
    "webhook_allow_private": True,
    "webhook_secret": "sixteen or more bytes",
    "webhook_timeout": 2.0,
    "webhook_retry_delay": 0.01,
    "webhook_attempts": 3,
    "watchdog_interval": 0.05,
}
_ENDED = """
WITH last AS (SELECT coalesce(max(e.id), 0) AS id FROM ledger.execution e),
named AS (INSERT INTO ledger.action_id (ref, id) VALUES ('a', 1) ON CONFLICT DO NOTHING),
ended AS (
    INSERT INTO ledger.execution (
        id, created_at, queued_at, scheduled_at, started_at, completed_at, request_hash, status, attempt,
        priority, action_ref, key, worker_id, parameters, result, callback_url
    )
    SELECT last.id + n, now(), now(), now(), now(), now(), gen_random_uuid(), 'completed', 1, 3, 'a', '', 'w',
           '{}', '{"total": 7}', $1
    FROM last, generate_series(1, $2::integer) n
    RETURNING id
)
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)
SELECT e.id, $1, ledger.origin_of($1), clock_timestamp(), clock_timestamp() FROM ended e
RETURNING execution_id
"""


async def completed(database: Database, url: str, count: int = 1) -> list[int]:
    """Write ended executions with deliveries to this URL, as a turn does; return their ids."""
    return sorted(row["execution_id"] for row in await database.fetch(_ENDED, url, count))


@asynccontextmanager
async def delivering(database_url: str, count: int = 1, **settings: Any) -> AsyncIterator[list[Deliverer]]:
    """Run `count` deliverers; at the end each completes its running deliveries."""
    databases = [Database(database_url, application_name="test", connections_max=4) for _ in range(count)]
    for database in databases:
        await database.open()
    chosen = ExecutorSettings(**{**SETTINGS, **settings})
    deliverers = [Deliverer(chosen, database) for database in databases]
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            for deliverer in deliverers:
                tasks.create_task(deliverer.run(stop), name="deliverer")
            try:
                yield deliverers
            finally:
                stop.set()
    finally:
        for database in databases:
            await database.close()


async def ended(database: Database, count: int = 1) -> dict[int, Any]:
    """Wait until `count` deliveries are delivered or failed; return their rows."""
    found: list[Any] = []

    async def are_ended() -> bool:
        found[:] = await database.fetch("SELECT * FROM ledger.webhook WHERE state <> 'pending'")
        return len(found) >= count

    await until(are_ended, f"{count} are delivered or failed")
    return {row["execution_id"]: row for row in found}
