"""Deliveries in the database: made by executions that end, claimed, noted, replayed and given up."""

from typing import Literal

from tests.support.protocol import Protocol
from turnstile.executor.webhooks.judgement import State
from turnstile.executor.webhooks.record import Claim, Note, WebhookRecord

URL = "https://example.org/hook"


def record(protocol: Protocol) -> WebhookRecord:
    return WebhookRecord(protocol.database)


async def states(protocol: Protocol) -> dict[int, str]:
    rows = await protocol.connection.fetch("SELECT execution_id, state FROM webhook_delivery ORDER BY 1")
    return {row["execution_id"]: row["state"] for row in rows}


async def ended(protocol: Protocol, count: int = 1, *, url: str | None = URL) -> list[int]:
    """Executions that have run and been settled."""
    ids = await protocol.submit(count=count, callback_url=url)
    await protocol.run(*ids)
    await protocol.settle(*((i, 1) for i in ids))
    return ids


async def claim(protocol: Protocol, limit: int = 100, *, lease_seconds: float = 60.0) -> list[Claim]:
    claims, _ = await claim_behind(protocol, "", limit, lease_seconds=lease_seconds)
    return claims


async def claim_behind(
    protocol: Protocol, after_origin: str, limit: int, *, lease_seconds: float = 60.0
) -> tuple[list[Claim], str]:
    """Claim as executors of the previous version do: the next of all receivers."""
    row = await protocol.connection.fetchrow(
        "SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4)", after_origin, lease_seconds, limit, 8
    )
    assert row is not None
    claimed = zip(row["claimed"] or (), row["claimed_origins"] or (), strict=True)
    return [Claim(**dict(item.items()), origin=origin) for item, origin in claimed], row["next_origin"]


def note(claim: Claim, state: State | Literal["released"], *, delay_seconds: float = 0.0) -> Note:
    return Note(claim=claim, state=state, status=503, error="down", delay_seconds=delay_seconds)


async def settled(protocol: Protocol, state: State, count: int = 1) -> list[int]:
    ids = await ended(protocol, count)
    await record(protocol).note([note(c, state) for c in await claim(protocol)])
    return ids


async def replay(protocol: Protocol, *ids: int) -> tuple[list[int], list[int], int]:
    replayed = await record(protocol).replay(ids or None, limit=2)
    return replayed.done, replayed.pending, replayed.left


async def give_up(protocol: Protocol, *, limit: int = 100, after_id: int = 0) -> tuple[int, int]:
    row = await protocol.connection.fetchrow(
        "SELECT * FROM turnstile.give_up_webhooks($1, 3600, $2)", after_id, limit
    )
    assert row is not None
    return row["given_up"], row["next_id"]
