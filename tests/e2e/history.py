"""What happened, read from the record, and the recount that every end-to-end test ends with."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.e2e.traffic import until

_AUDIT = """
SELECT 'depth of queue ' || q.id AS fault FROM action_queue q
WHERE q.depth <> (SELECT count(*) FROM waiting w WHERE w.queue_id = q.id)
UNION ALL
SELECT 'head of queue ' || q.id FROM action_queue q
WHERE EXISTS (SELECT FROM waiting w WHERE w.queue_id = q.id AND w.execution_id < q.head_id)
UNION ALL
SELECT 'totals of queue ' || q.id FROM action_queue q
WHERE q.total_enqueued <> (SELECT count(*) FROM execution e WHERE e.queue_id = q.id)
   OR q.total_completed <> (
        SELECT count(*) FROM execution e
        WHERE e.queue_id = q.id AND e.completed_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id)
          AND NOT EXISTS (SELECT FROM untold_end u WHERE u.execution_id = e.id))
UNION ALL
SELECT 'overfull queue ' || q.id FROM action_queue q
WHERE (SELECT count(*) FROM slot s WHERE s.queue_id = q.id) > q.max_concurrent
UNION ALL
SELECT 'queued but not in line: ' || e.id FROM execution e
WHERE (e.status = 'queued') <> EXISTS (
    SELECT FROM waiting w WHERE w.queue_id = e.queue_id AND w.execution_id = e.id)
UNION ALL
SELECT 'slot and status disagree: ' || e.id FROM execution e
LEFT JOIN slot s ON s.execution_id = e.id AND s.attempt = e.attempt
WHERE (e.status IN ('scheduled', 'running')) <> (s.execution_id IS NOT NULL AND s.finished_at IS NULL)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One physical start or stop, as an action wrote it."""

    event: str
    execution_id: int
    attempt: int
    number: int
    client: int
    at: int


class History:
    """Questions to the record."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    async def value(self, query: str, *arguments: Any) -> Any:
        """Return one value."""
        return await self._connection.fetchval(query, *arguments)

    async def rows(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Return all rows."""
        return await self._connection.fetch(query, *arguments)

    async def ended(self, count: int, *, deadline_seconds: float = 60.0) -> None:
        """Wait until `count` executions have ended and been settled."""

        async def all_ended() -> bool:
            return bool(
                await self.value("SELECT coalesce(sum(total_completed), 0) >= $1 FROM action_queue", count)
            )

        await until(all_ended, f"{count} ended executions", deadline_seconds=deadline_seconds)

    async def faults(self) -> list[str]:
        """Recount everything; an empty list is a clean audit."""
        return [row["fault"] for row in await self.rows(_AUDIT)]

    async def most_at_once(self, ref: str) -> int:
        """Return the most attempts of an action that held a slot at one moment, from grant to end."""
        found: int = await self.value(
            """
            WITH edges AS (
                SELECT t.granted_at AS at, 1 AS step FROM attempt t
                JOIN execution e ON e.id = t.execution_id JOIN action a ON a.id = e.action_id WHERE a.ref = $1
                UNION ALL
                SELECT t.ended_at, -1 FROM attempt t
                JOIN execution e ON e.id = t.execution_id JOIN action a ON a.id = e.action_id WHERE a.ref = $1
            )
            SELECT max(held) FROM (SELECT sum(step) OVER (ORDER BY at, step) AS held FROM edges) h
            """,
            ref,
        )
        return found

    async def grant_order(self, ref: str) -> list[int]:
        """Return the ids of an action's first grants, in the order of their granting."""
        rows = await self.rows(
            """
            SELECT t.execution_id FROM attempt t
            JOIN execution e ON e.id = t.execution_id JOIN action a ON a.id = e.action_id
            WHERE a.ref = $1 AND t.attempt = 1 ORDER BY t.granted_at, t.execution_id
            """,
            ref,
        )
        return [row["execution_id"] for row in rows]


@asynccontextmanager
async def history_of(database_url: str) -> AsyncIterator[History]:
    """Read a database; at the end of the test its audit must be clean."""
    connection = await asyncpg.connect(database_url)
    try:
        history = History(connection)
        yield history
        assert await history.faults() == []
    finally:
        await connection.close()


def physical(file: Path) -> list[Line]:
    """Return the lines that the action `record` wrote, in the order of writing."""
    return [Line(**json.loads(line)) for line in file.read_text().splitlines()]


def most_running_at_once(lines: list[Line]) -> int:
    """Return the most that ran at one moment, by the actions' own records."""
    running = most = 0
    for line in lines:
        running += 1 if line.event == "start" else -1
        most = max(most, running)
    return most
