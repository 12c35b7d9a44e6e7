"""The watchdog's statements on one connection: what is due, overdue, lost or drifted, and is done then."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tests.integration.executor.reading import Reading, ids_in
from turnstile.executor.decisions import Grants, Move
from turnstile.executor.queue_manager import grant_of, grants_of, moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """What a reclaim did."""

    returned: list[int]
    ended: dict[int, str]
    granted: list[int]


class Sweeping(Reading):
    """Thin: each method is one statement."""

    async def wake_due(self, limit: int = 1000) -> tuple[list[Move], Grants]:
        row = await self.connection.fetchrow("SELECT * FROM turnstile.wake_due($1)", limit)
        assert row is not None
        return [moved(item) for item in row["woken"] or ()], grants_of(row)

    async def expire_due(self, limit: int = 1000) -> list[Move]:
        return [
            moved(r) for r in await self.connection.fetch("SELECT * FROM turnstile.expire_due($1)", limit)
        ]

    async def due_offers(self, timeout_seconds: float = 0.0, limit: int = 1000) -> list[int]:
        rows = await self.connection.fetch(
            "SELECT * FROM turnstile.due_offers($1, $2)", timeout_seconds, limit
        )
        return sorted(grant_of(row).execution_id for row in rows)

    async def due_pools(self, timeout_seconds: float = 0.0) -> dict[str, int]:
        """Return the pools to be looked at, with how many messages each queue should hold."""
        rows = await self.connection.fetch("SELECT * FROM turnstile.due_pools($1)", timeout_seconds)
        return {row["pool"]: row["offered"] for row in rows}

    async def missing_offers(
        self,
        ready: Mapping[str, int],
        *,
        timeout_seconds: float = 0.0,
        limit: int = 1000,
        looked_at: datetime | None = None,
    ) -> list[int]:
        """Do what the sweep does where the broker says that so many messages are ready in these pools."""
        rows = await self.connection.fetch("SELECT * FROM turnstile.due_pools($1)", timeout_seconds)
        due = [row for row in rows if row["pool"] in ready]
        if not due:
            return []
        rows = await self.connection.fetch(
            "SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6)",
            timeout_seconds,
            looked_at or due[0]["looked_at"],
            [row["pool"] for row in due],
            [row["offered"] for row in due],
            [ready[row["pool"]] for row in due],
            limit,
        )
        return sorted(grant_of(row).execution_id for row in rows)

    async def due_completions(self, timeout_seconds: float = 0.0, limit: int = 1000) -> list[int]:
        rows = await self.connection.fetch(
            "SELECT * FROM turnstile.due_completions($1, $2)", timeout_seconds, limit
        )
        return sorted(row[0] for row in rows)

    async def idle_queues(self, after_id: int = 0, lines_max: int = 20_000) -> list[int]:
        row = await self.connection.fetchrow(
            "SELECT * FROM turnstile.idle_queues($1, $2)", after_id, lines_max
        )
        assert row is not None
        return row["queue_ids"] or []

    async def reclaim(self, limit: int = 1000, as_of: datetime | None = None) -> Reclaimed:
        row = await self.connection.fetchrow("SELECT * FROM turnstile.reclaim($1, $2)", limit, as_of)
        assert row is not None
        return Reclaimed(
            returned=[moved(item).execution_id for item in row["returned"] or ()],
            ended={moved(item).execution_id: moved(item).status.value for item in row["ended"] or ()},
            granted=ids_in(grants_of(row)),
        )

    async def due_stops(self, timeout_seconds: float = -1.0, limit: int = 1000) -> list[tuple[int, int, str]]:
        rows = await self.connection.fetch(
            "SELECT * FROM turnstile.due_stops($1, $2)", timeout_seconds, limit
        )
        return [(row["execution_id"], row["attempt"], row["worker_id"]) for row in rows]

    async def stops_told(self, *stops: tuple[int, int]) -> None:
        await self.connection.execute(
            "SELECT turnstile.stops_told($1, $2)", [i for i, _ in stops], [attempt for _, attempt in stops]
        )

    async def stop_overdue(
        self, grace_seconds: float = 0.0, *, asks_max: int = 2, limit: int = 1000
    ) -> tuple[list[Move], list[Move]]:
        """Return the attempts whose workers are to be told, and those that were ended."""
        row = await self.connection.fetchrow(
            "SELECT * FROM turnstile.stop_overdue($1, $2, $3)", grace_seconds, asks_max, limit
        )
        assert row is not None
        return [moved(item) for item in row["asked"] or ()], [moved(item) for item in row["ended"] or ()]

    async def delete_idle_queues(
        self, idle_seconds: float = 0.0, *, after_id: int = 0, limit: int = 1000
    ) -> int:
        row = await self.connection.fetchrow(
            "SELECT * FROM turnstile.delete_idle_queues($1, $2, $3)", after_id, idle_seconds, limit
        )
        assert row is not None
        return int(row["deleted"])

    async def drifted_queues(self, after_id: int = 0, limit: int = 1000) -> list[int]:
        row = await self.connection.fetchrow(
            "SELECT * FROM turnstile.drifted_queues($1, $2)", after_id, limit
        )
        assert row is not None
        return row["queue_ids"] or []

    async def repair(self, *queue_ids: int) -> tuple[list[int], list[int]]:
        """Return the queues that were put right, and what that granted."""
        row = await self.connection.fetchrow("SELECT * FROM turnstile.repair_queues($1)", list(queue_ids))
        assert row is not None
        return [item["queue_id"] for item in row["repaired"] or ()], ids_in(grants_of(row))

    async def roll_out(self, limit: int = 1000) -> list[tuple[int, int, list[int]]]:
        """Bring changed limits to the next queues: looked at, changed and granted, for each action."""
        rolled = []
        for action_id in await self.column("SELECT turnstile.rollouts_due(1000)"):
            row = await self.connection.fetchrow("SELECT * FROM turnstile.roll_out($1, $2)", action_id, limit)
            assert row is not None
            rolled.append((row["looked_at"], row["changed"], ids_in(grants_of(row))))
        return rolled
