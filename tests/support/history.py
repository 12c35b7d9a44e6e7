"""What happened, read from the record, and the recount that every end-to-end test ends with."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.executor.reading.audit import AuditBounds, Auditor
from turnstile.executor.settings import ExecutorSettings


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

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", auditor: Auditor) -> None:
        self._connection = connection
        self._auditor = auditor
        self._turn = asyncio.Lock()

    async def value(self, query: str, *arguments: Any) -> Any:
        """Return one value; may be asked by many tasks."""
        async with self._turn:
            return await self._connection.fetchval(query, *arguments)

    async def rows(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Return all rows; may be asked by many tasks."""
        async with self._turn:
            return await self._connection.fetch(query, *arguments)

    async def ended(self, count: int, *, deadline_seconds: float = 60.0) -> None:
        """Wait until `count` executions have ended and been settled."""

        async def all_ended() -> bool:
            return bool(
                await self.value("SELECT coalesce(sum(total_completed), 0) >= $1 FROM action_queue", count)
            )

        await until(all_ended, f"{count} ended executions", deadline_seconds=deadline_seconds)

    async def dead_letters(self, count: int) -> list[asyncpg.Record]:
        """Wait until so many dead letters are stored; delete them and return them, the oldest first."""

        async def are_stored() -> bool:
            return bool(await self.value("SELECT count(*) >= $1 FROM dead_letter", count))

        await until(are_stored, f"{count} dead letters")
        letters = await self.rows("DELETE FROM dead_letter RETURNING *")
        assert len(letters) == count
        return sorted(letters, key=lambda letter: (letter["died_at"], letter["id"]))

    async def faults(self) -> list[str]:
        """Recount everything, as `executor audit` does; an empty list is a clean audit."""
        found = await self._auditor.audit()
        return [f"{check.name}: {check.says}: {check.examples}" for check in found.checks if check.faults]

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
    database = Database(database_url, application_name="audit of the test", connections_max=1)
    connection = await asyncpg.connect(database_url)
    try:
        await database.open()
        # By the default settings, which are slower than what a test chooses.
        history = History(connection, Auditor(database, AuditBounds.of(ExecutorSettings())))
        yield history
        assert await history.faults() == []
    finally:
        await database.close()
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
