"""Claims, records, replays and lists deliveries.

A process remembers, for each receiver, an instant below which nothing is pending, and reads from there on:
what has ended costs nothing, also while an old snapshot keeps it (P15). What is new, or becomes pending
again, has a new instant of creation and is found by that; what is retried later stays pending meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import asyncpg

from turnstile.common.broker.message import Outgoing
from turnstile.common.database import Database
from turnstile.common.json_limits import readable
from turnstile.executor.callers import DIRECTLY, Caller
from turnstile.executor.leader.events import completed_event
from turnstile.executor.sql import statements
from turnstile.executor.webhooks.concurrency import PER_ORIGIN_MAX, Due
from turnstile.executor.webhooks.sender import State

STATEMENTS: Final = statements("webhooks/webhooks.sql")
_LATE: Final = timedelta(seconds=30)
"""A transaction that makes deliveries pending commits sooner after it has read the clock."""
_ORIGINS_MAX: Final = 1000
"""Receivers looked at in one call; the next call goes on behind them."""
_START: Final = datetime.min.replace(tzinfo=UTC)


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


class Deliveries:
    """The deliveries of one installation, as one executor sees them. Every method raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._bounds: dict[str, datetime] = {}
        """By receiver that may have pending deliveries: nothing is pending below this instant."""
        self._seen_until = _START
        """What was created before and became pending is in `_bounds`."""

    async def due(self, *, after_origin: str) -> tuple[list[Due], str]:
        """Return the next receivers with due deliveries, and after which to continue; "" is the start."""
        now = await self._find_new()
        origins = sorted(origin for origin in self._bounds if origin > after_origin)[:_ORIGINS_MAX]
        bounds = [self._bounds[origin] for origin in origins]
        found = []
        for row in await self._database.fetch(STATEMENTS["due"], origins, bounds, PER_ORIGIN_MAX):
            self._raise_bound(row["origin"], row["first_at"], now)
            if row["free"]:
                found.append(Due(origin=row["origin"], due_at=row["due_at"], count=row["free"]))
        return found, origins[-1] if len(origins) == _ORIGINS_MAX else ""

    async def _find_new(self) -> datetime:
        now: datetime = await self._database.fetchval(STATEMENTS["now"])
        for row in await self._database.fetch(STATEMENTS["receivers"], self._seen_until):
            origin, due_at = row["origin"], row["due_at"]
            self._bounds[origin] = min(self._bounds.get(origin, due_at), due_at)
        self._seen_until = now - _LATE
        return now

    def _raise_bound(self, origin: str, first_at: datetime | None, now: datetime) -> None:
        if first_at is not None:
            self._bounds[origin] = max(self._bounds[origin], min(first_at, now - _LATE))
        elif self._bounds[origin] < now - _LATE:
            del self._bounds[origin]

    async def claim(self, counts: Mapping[str, int], *, lease_seconds: float) -> list[Claim]:
        """Claim up to so many due deliveries of each receiver."""
        rows = await self._database.fetch(
            STATEMENTS["claim"],
            list(counts),
            [self._bounds.get(origin, _START) for origin in counts],
            list(counts.values()),
            PER_ORIGIN_MAX,
            lease_seconds,
        )
        return sorted((Claim(**row) for row in rows), key=lambda claim: claim.execution_id)

    async def record(self, results: Sequence[DeliveryResult]) -> list[bool]:
        """Store results, and return which of them were in time to be applied."""
        rows = await self._database.fetch(
            STATEMENTS["record"],
            [each.claim.execution_id for each in results],
            [each.claim.claimed_until for each in results],
            [each.state for each in results],
            [each.status for each in results],
            [each.error for each in results],
            [each.delay_seconds for each in results],
        )
        applied = {row["execution_id"] for row in rows}
        return [each.claim.execution_id in applied for each in results]

    async def completions(
        self, execution_ids: Sequence[int], *, result_bytes_max: int
    ) -> dict[int, Outgoing]:
        """Return what is posted about ended executions that are stored; a larger result is null."""
        rows = await self._database.fetch(STATEMENTS["completions"], list(execution_ids), result_bytes_max)
        return {row["execution_id"]: _completion(row, result_bytes_max) for row in rows}

    async def replay(
        self, execution_ids: Sequence[int] | None, *, limit: int, changed_by: Caller = DIRECTLY
    ) -> Replayed:
        """Make these due again, whatever their result; None: the failed ones, the oldest first."""
        async with self._database.transaction() as connection:
            if execution_ids is None:
                rows = await connection.fetch(STATEMENTS["oldest_failed"], limit)
                execution_ids = [row["execution_id"] for row in rows]
            states = await connection.fetch(STATEMENTS["states"], list(execution_ids))
            replayed = await connection.fetch(STATEMENTS["replay"], *changed_by, list(execution_ids))
            left = await connection.fetchval(STATEMENTS["failed"])
        return Replayed(
            done=sorted(row["execution_id"] for row in replayed),
            pending=[row["execution_id"] for row in states if row["state"] == "pending"],
            left=left,
        )

    async def planned(self, execution_ids: Sequence[int] | None) -> Replayed:
        """Return what `replay` would do without a limit, and change nothing.

        `left` is how many it would make due; with ids, `done` has them.
        """
        if execution_ids is None:
            return Replayed(done=[], pending=[], left=await self._database.fetchval(STATEMENTS["failed"]))
        rows = await self._database.fetch(STATEMENTS["states"], list(execution_ids))
        pending = [row["execution_id"] for row in rows if row["state"] == "pending"]
        ended = [row["execution_id"] for row in rows if row["state"] != "pending"]
        return Replayed(done=ended, pending=pending, left=len(ended))

    async def page(self, states: Sequence[State], *, before_id: int, limit: int) -> Sequence[asyncpg.Record]:
        """Return deliveries in any of these states, the newest execution first."""
        return await self._database.fetch(STATEMENTS["page"], list(states), before_id, limit)

    async def give_up(self, after_id: int, age_seconds: float, rows_max: int) -> tuple[int, int]:
        """Fail what is pending for too long; return how many, and after which to continue, or 0."""
        row = await self._database.fetchrow(STATEMENTS["give_up"], after_id, age_seconds, rows_max)
        assert row is not None
        return row["given_up"], row["next_id"] or 0

    async def prune(self, keep_seconds: float, rows_max: int) -> int:
        """Delete what ended long ago; return how many."""
        return int(await self._database.fetchval(STATEMENTS["prune"], keep_seconds, rows_max))


def _completion(row: asyncpg.Record, result_bytes_max: int) -> Outgoing:
    kind, message = row["error_type"], row["error_message"]
    error = None if kind is None else {"type": kind, "message": message}
    event = {**row, "error": error}
    # A client must be able to read it.
    if readable(row["result"]) is None:
        event["result"] = None
    return completed_event(event, result_bytes_max=result_bytes_max)
