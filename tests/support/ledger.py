"""Who held a slot and who stood in line, written down by triggers in the transactions that changed it.

All of them are made under the queue's row lock, so per queue the order of the numbers is the order of the
commits.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from tests.support.history import History

_INSTALL = """
CREATE TABLE ledger (
    seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(),
    place text, step integer, queue_id bigint, execution_id bigint
);
CREATE FUNCTION ledger_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO ledger (place, step, queue_id, execution_id)
        VALUES (TG_TABLE_NAME, 1, NEW.queue_id, NEW.execution_id);
    ELSE
        INSERT INTO ledger (place, step, queue_id, execution_id)
        VALUES (TG_TABLE_NAME, -1, OLD.queue_id, OLD.execution_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER ledger_slot AFTER INSERT OR DELETE ON slot FOR EACH ROW EXECUTE FUNCTION ledger_write();
CREATE TRIGGER ledger_waiting AFTER INSERT OR DELETE ON waiting FOR EACH ROW EXECUTE FUNCTION ledger_write();
"""
_REMOVE = "DROP TABLE ledger CASCADE; DROP FUNCTION ledger_write CASCADE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A slot taken (+1) or freed (-1), a place in line taken (+1) or left (-1)."""

    place: str
    step: int
    queue_id: int
    execution_id: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Ledger:
    """Questions to what was written down."""

    entries: list[Entry]

    def slots_of(self, execution_id: int) -> list[int]:
        """Return the steps of one execution's slots."""
        return [e.step for e in self.entries if e.place == "slot" and e.execution_id == execution_id]

    def most_held(self, queue_id: int) -> int:
        """Return the most slots of a queue that were held after any change."""
        held = most = 0
        for entry in self.entries:
            if entry.place == "slot" and entry.queue_id == queue_id:
                held += entry.step
                most = max(most, held)
        return most

    def longest_idle(self, queue_id: int, limit: int) -> timedelta:
        """Return how long at most a free slot of a queue stood beside somebody in line."""
        held = standing = 0
        idle_since: datetime | None = None
        longest = timedelta()
        for entry in self.entries:
            if entry.queue_id != queue_id:
                continue
            if idle_since is not None:
                longest = max(longest, entry.at - idle_since)
            held += entry.step if entry.place == "slot" else 0
            standing += entry.step if entry.place == "waiting" else 0
            is_idle = standing > 0 and held < limit
            idle_since = (idle_since or entry.at) if is_idle else None
        assert idle_since is None, f"queue {queue_id} is idle at the end"
        return longest


async def read_ledger(history: History) -> Ledger:
    rows = await history.rows("SELECT place, step, queue_id, execution_id, at FROM ledger ORDER BY seq")
    return Ledger([Entry(**dict(row)) for row in rows])


@asynccontextmanager
async def ledger_kept(database_url: str) -> AsyncIterator[None]:
    """Write down every change until the end of the block."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_INSTALL)
        try:
            yield
        finally:
            await connection.execute(_REMOVE)
    finally:
        await connection.close()
