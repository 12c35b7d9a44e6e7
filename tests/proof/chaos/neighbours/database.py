"""Neighbours at the database: a session that locks one row and keeps it, an administrator who ends sessions.

In: a disturbance. Out: see `Neighbour`. The row belongs to an action of the neighbour's own; what is tried is
that others share a batch with it.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg
from aio_pika.abc import AbstractChannel

from tests.proof.chaos.neighbours.neighbour import ASK_SECONDS, Neighbour, Sending

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]

_LOOK_SECONDS: Final = 0.05
_KILL_EVERY_SECONDS: Final = (0.5, 2.0)
_HEAD_START_SECONDS: Final = 1.0


class LockedRow(Neighbour):
    """Locks one row of its own action and keeps it, while requests for that action go on."""

    async def disturb(self) -> None:
        """Ask for a run, lock its row, and go on asking."""
        session = await asyncpg.connect(self.access.database_url, timeout=ASK_SECONDS)
        try:
            async with self.channel() as channel:
                await self._lock(session, channel)
                self.did["locked"] += 1
                await self.send(channel, self._make, per_second=8, did="requests")
        finally:
            # Not in order: whoever waits for the lock is to have it at once.
            session.terminate()

    async def _lock(self, session: "Session", channel: AbstractChannel) -> None:
        key = f"lock {self.access.seed} {self.number}"
        # In front of it something runs that ends a moment after the lock is taken.
        runs = self.variant != "waiting execution"
        if not runs:
            await self._ask(channel, f"{key} first", _HEAD_START_SECONDS)
            await self._seen(session, f"{key} first")
        await self._ask(channel, key, _HEAD_START_SECONDS if runs else 0.0)
        row = await self._seen(session, key)
        statement = {
            "action_queue": "SELECT FROM action_queue WHERE id = $1 FOR UPDATE",
            "action": "SELECT FROM action WHERE id = $1 FOR UPDATE",
        }.get(self.variant, "SELECT FROM execution WHERE id = $1 FOR UPDATE")
        column = {"action_queue": "queue_id", "action": "action_id"}.get(self.variant, "id")
        await session.execute("BEGIN")
        await session.execute(statement, row[column])

    async def _ask(self, channel: AbstractChannel, key: str, seconds: float) -> None:
        await self.publish(channel, self._make(0, idempotency_key=key, seconds=seconds))

    async def _seen(self, session: "Session", key: str) -> asyncpg.Record:
        while True:
            row = await session.fetchrow("SELECT * FROM execution WHERE idempotency_key = $1", key)
            if row is not None and (row["status"] != "scheduled"):
                return row
            await asyncio.sleep(_LOOK_SECONDS)

    def _make(self, number: int, seconds: float = 0.0, **fields: Any) -> Sending:
        # A new key takes a lock on the action's row, since its queue refers to it.
        ref = "neighbour.locked-keyed" if self.variant == "action" else "neighbour.locked"
        parameters = {"key": f"{self.number} {number}"} if self.variant == "action" else {}
        return self.request(self.body(ref, parameters={"seconds": seconds, **parameters}, **fields))


class KilledSessions(Neighbour):
    """Ends one session of a service after the other, drawn at random."""

    async def disturb(self) -> None:
        """Look who is there, and end one of them."""
        session = await asyncpg.connect(self.access.database_url, timeout=ASK_SECONDS)
        try:
            while True:
                pids = await session.fetch(
                    "SELECT pid FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE 'turnstile %' ORDER BY pid"
                )
                if pids:
                    await session.execute("SELECT pg_terminate_backend($1)", self.rng.choice(pids)["pid"])
                    self.did["sessions"] += 1
                await asyncio.sleep(self.rng.uniform(*_KILL_EVERY_SECONDS))
        finally:
            session.terminate()
