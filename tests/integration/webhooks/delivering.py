"""Deliverers that run for the length of a test, ends for them to tell, and what became of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.protocol import Protocol
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


@asynccontextmanager
async def delivering(database_url: str, count: int = 1, **settings: Any) -> AsyncIterator[list[Deliverer]]:
    """Let so many replicas deliver; at the end each has ended what it had under way."""
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


async def settled(protocol: Protocol, count: int = 1) -> dict[int, Any]:
    """Wait until so many are delivered or given up; return them."""
    found: list[Any] = []

    async def are_settled() -> bool:
        found[:] = await protocol.connection.fetch("SELECT * FROM webhook_delivery WHERE state <> 'pending'")
        return len(found) >= count

    await until(are_settled, f"{count} are delivered or given up")
    return {row["execution_id"]: row for row in found}


async def ended(protocol: Protocol, url: str, count: int = 1) -> list[int]:
    ids = await protocol.submit(count=count, callback_url=url)
    await protocol.claim(*ids)
    await protocol.finish(*ids, result_json='{"total": 7}')
    await protocol.settle(*((i, 1) for i in ids))
    return ids
