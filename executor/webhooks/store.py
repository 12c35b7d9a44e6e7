"""The statements on webhook deliveries: claim, record, replay, list.

Every statement may be repeated after an unknown outcome: a lost claim expires, and a result is applied only
under its claim. `executor.protocol` has the executor's other SQL functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from turnstile.common.database import Database
from turnstile.executor.callers import Caller
from turnstile.executor.sql import query
from turnstile.executor.webhooks.concurrency import PER_ORIGIN_MAX, Due
from turnstile.executor.webhooks.sender import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One delivery, leased to this executor."""

    execution_id: int
    event_id: UUID
    url: str
    attempts: int
    """Including this one."""
    origin: str
    claimed_until: datetime
    """Also identifies the claim: two claims of one delivery never end at the same instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """Result of a claimed delivery."""

    claim: Claim
    state: State | Literal["released"]
    """Released: the attempt was cut short and does not count."""
    status: int | None
    error: str | None
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result of a replay of deliveries."""

    done: list[int]
    pending: list[int]
    """Deliveries that are pending already."""
    left: int
    """Further failed deliveries."""


class WebhookStore:
    """The SQL functions of webhooks. Safe to share between tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, *, after_origin: str) -> tuple[list[Due], str]:
        """Return the next receivers with due deliveries, and after which to continue; "" is the start."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.due_webhooks($1, $2)", after_origin, PER_ORIGIN_MAX
        )
        assert row is not None
        found = zip(row["origins"] or (), row["due_ats"] or (), row["counts"] or (), strict=True)
        return [Due(origin=o, due_at=at, count=count) for o, at, count in found], row["next_origin"]

    async def claim(self, counts: Mapping[str, int], *, lease_seconds: float) -> list[Claim]:
        """Claim up to so many due deliveries of each receiver."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4, $5, $6)",
            "",
            lease_seconds,
            sum(counts.values()),
            PER_ORIGIN_MAX,
            list(counts),
            list(counts.values()),
        )
        assert row is not None
        claimed = zip(row["claimed"] or (), row["claimed_origins"] or (), strict=True)
        return [Claim(**dict(item.items()), origin=origin) for item, origin in claimed]

    async def record(self, results: Sequence[DeliveryResult]) -> list[bool]:
        """Store results, and return which of them were in time to be applied."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.record_webhooks($1, $2, $3, $4, $5, $6)",
            [n.claim.execution_id for n in results],
            [n.claim.claimed_until for n in results],
            [n.state for n in results],
            [n.status for n in results],
            [n.error for n in results],
            [n.delay_seconds for n in results],
        )
        applied = {row[0] for row in rows}
        return [n.claim.execution_id in applied for n in results]

    async def replay(
        self, execution_ids: Sequence[int] | None, *, limit: int, changed_by: Caller | None = None
    ) -> Replayed:
        """Make these due again, whatever their result; None: the failed ones, the oldest first."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.replay_webhooks($1, $2, $3)",
            None if execution_ids is None else list(execution_ids),
            limit,
            None if changed_by is None else changed_by.json(),
        )
        assert row is not None
        return Replayed(done=row["replayed_ids"], pending=row["pending_ids"], left=row["left_count"])

    async def planned(self, execution_ids: Sequence[int] | None) -> Replayed:
        """Return what `replay` would do without a limit, and change nothing.

        `left` is how many it would make due; with ids, `done` has them.
        """
        if execution_ids is None:
            return Replayed(done=[], pending=[], left=await self._database.fetchval(query("failed_webhooks")))
        rows = await self._database.fetch(query("webhook_states"), list(execution_ids))
        pending = [row["execution_id"] for row in rows if row["state"] == "pending"]
        settled = [row["execution_id"] for row in rows if row["state"] != "pending"]
        return Replayed(done=settled, pending=pending, left=len(settled))

    async def page(self, states: Sequence[State], *, before_id: int, limit: int) -> Sequence[asyncpg.Record]:
        """Return deliveries in any of these states, the newest execution first."""
        return await self._database.fetch(query("webhooks"), list(states), before_id, limit)
