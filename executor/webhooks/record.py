"""The statements on deliveries: claim, note, replay, list.

In: what a deliverer or a person wants. Out: values. All may be said again after an unknown outcome: a claim
that was lost runs out, a note is guarded by its claim. Next: `common/sql/43_webhooks.sql`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from common.database import Database
from executor.sql import query
from executor.webhooks.judgement import State

_PER_ORIGIN_MAX: Final = 8
"""Webhooks under way to one receiver, over all executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One delivery, ours until its lease ends."""

    execution_id: int
    event_id: UUID
    url: str
    attempts: int
    """This one included."""
    claimed_until: datetime
    """Also the claim's name: two claims of one delivery never end at the same instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What became of a claimed delivery."""

    claim: Claim
    state: State
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

    async def claim(self, *, after_origin: str, lease_seconds: float, limit: int) -> tuple[list[Claim], str]:
        """Take the next due deliveries; also return behind which receiver to go on, "" for from the start."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4)",
            after_origin,
            lease_seconds,
            limit,
            _PER_ORIGIN_MAX,
        )
        assert row is not None
        return [Claim(**dict(item.items())) for item in row["claimed"] or ()], row["next_origin"]

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
