"""The statements on deliveries: claim, note, replay, list.

In: what a deliverer or a person wants. Out: values. All may be said again after an unknown outcome: a claim
that was lost runs out, a note is guarded by its claim. Next: `common/sql/43_webhooks.sql`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from turnstile.common.database import Database
from turnstile.executor.sql import query
from turnstile.executor.webhooks.judgement import State
from turnstile.executor.webhooks.places import PER_ORIGIN_MAX, Due


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One delivery, ours until its lease ends."""

    execution_id: int
    event_id: UUID
    url: str
    attempts: int
    """This one included."""
    origin: str
    claimed_until: datetime
    """Also the claim's name: two claims of one delivery never end at the same instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What became of a claimed delivery."""

    claim: Claim
    state: State | Literal["released"]
    """Released: its attempt was cut short and does not count."""
    status: int | None
    error: str | None
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of the deliveries that were to be made once more."""

    done: list[int]
    pending: list[int]
    """Those that are under way in any case."""
    left: int
    """Failed ones besides."""


class WebhookRecord:
    """Calls the statements. Safe to share between tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, *, after_origin: str) -> tuple[list[Due], str]:
        """Return the next receivers with something due; also behind which to go on, "" for from the start."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.due_webhooks($1, $2)", after_origin, PER_ORIGIN_MAX
        )
        assert row is not None
        found = zip(row["origins"] or (), row["due_ats"] or (), row["counts"] or (), strict=True)
        return [Due(origin=o, due_at=at, count=count) for o, at, count in found], row["next_origin"]

    async def claim(self, counts: Mapping[str, int], *, lease_seconds: float) -> list[Claim]:
        """Take so many due deliveries of each receiver, or as many as others have left."""
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

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """Record what became of each, and tell which of them came in time to count."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.note_webhooks($1, $2, $3, $4, $5, $6)",
            [n.claim.execution_id for n in notes],
            [n.claim.claimed_until for n in notes],
            [n.state for n in notes],
            [n.status for n in notes],
            [n.error for n in notes],
            [n.delay_seconds for n in notes],
        )
        applied = {row[0] for row in rows}
        return [n.claim.execution_id in applied for n in notes]

    async def replay(self, execution_ids: Sequence[int] | None, *, limit: int) -> Replayed:
        """Make these due once more, whatever became of them; None: those that failed, the oldest first."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.replay_webhooks($1, $2)",
            None if execution_ids is None else list(execution_ids),
            limit,
        )
        assert row is not None
        return Replayed(done=row["replayed_ids"], pending=row["pending_ids"], left=row["left_count"])

    async def page(
        self, states: Sequence[State], *, before_id: int, limit: int
    ) -> "Sequence[dict[str, object]]":
        """Return deliveries in any of these states, the newest execution first."""
        rows = await self._database.fetch(query("webhooks"), list(states), before_id, limit)
        return [dict(row.items()) for row in rows]
