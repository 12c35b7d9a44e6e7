"""Webhook deliveries in the database, the statements that change them, and deliverers that run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from tests.support.protocol import Protocol
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.webhooks.deliverer import Deliverer
from turnstile.executor.webhooks.sender import State
from turnstile.executor.webhooks.store import Claim, DeliveryResult, WebhookStore

URL = "https://example.org/hook"
SETTINGS: dict[str, Any] = {
    "webhook_allow_private": True,
    "webhook_secret": "sixteen or more bytes",
    "webhook_timeout": 2.0,
    "webhook_retry_delay": 0.01,
    "webhook_attempts": 3,
    "watchdog_interval": 0.05,
}


def store(protocol: Protocol) -> WebhookStore:
    return WebhookStore(protocol.database)


async def states(protocol: Protocol) -> dict[int, str]:
    rows = await protocol.connection.fetch("SELECT execution_id, state FROM webhook_delivery ORDER BY 1")
    return {row["execution_id"]: row["state"] for row in rows}


async def completed(protocol: Protocol, url: str | None = URL, count: int = 1) -> list[int]:
    """Run and settle executions with this callback URL; return their ids."""
    ids = await protocol.submit(count=count, callback_url=url)
    await protocol.claim(*ids)
    await protocol.finish(*ids, result_json='{"total": 7}')
    await protocol.settle(*((i, 1) for i in ids))
    return ids


async def claim(protocol: Protocol, limit: int = 100, *, lease_seconds: float = 60.0) -> list[Claim]:
    claims, _ = await claim_after(protocol, "", limit, lease_seconds=lease_seconds)
    return claims


async def claim_after(
    protocol: Protocol, after_origin: str, limit: int, *, lease_seconds: float = 60.0, each_max: int = 8
) -> tuple[list[Claim], str]:
    """Claim as executors of the previous version do: the next of all receivers."""
    row = await protocol.row(
        "SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4)", after_origin, lease_seconds, limit, each_max
    )
    claimed = zip(row["claimed"] or (), row["claimed_origins"] or (), strict=True)
    return [Claim(**dict(item.items()), origin=origin) for item, origin in claimed], row["next_origin"]


def result(claim: Claim, state: State | Literal["released"], *, delay_seconds: float = 0.0) -> DeliveryResult:
    return DeliveryResult(claim=claim, state=state, status=503, error="down", delay_seconds=delay_seconds)


async def in_state(protocol: Protocol, state: State, count: int = 1) -> list[int]:
    ids = await completed(protocol, count=count)
    await store(protocol).record([result(c, state) for c in await claim(protocol)])
    return ids


async def replay(protocol: Protocol, *ids: int) -> tuple[list[int], list[int], int]:
    replayed = await store(protocol).replay(ids or None, limit=2)
    return replayed.done, replayed.pending, replayed.left


async def give_up(protocol: Protocol, *, limit: int = 100, after_id: int = 0) -> tuple[int, int]:
    row = await protocol.row("SELECT * FROM turnstile.give_up_webhooks($1, 3600, $2)", after_id, limit)
    return row["given_up"], row["next_id"]


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


async def ended(protocol: Protocol, count: int = 1) -> dict[int, Any]:
    """Wait until `count` deliveries are delivered or failed; return their rows."""
    found: list[Any] = []

    async def are_ended() -> bool:
        found[:] = await protocol.connection.fetch("SELECT * FROM webhook_delivery WHERE state <> 'pending'")
        return len(found) >= count

    await until(are_ended, f"{count} are delivered or failed")
    return {row["execution_id"]: row for row in found}
