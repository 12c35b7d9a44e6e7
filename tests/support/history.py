"""The history of a system in its database, the recount at the end of every end-to-end test, and the actions'
runs.
"""

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
from turnstile.executor.queries.audit import Auditor
from turnstile.stress.check.counts import peak_concurrency

_ENDED_ATTEMPTS = """
SELECT a.execution_id, a.attempt, a.outcome, a.scheduled_at, a.started_at, a.ended_at FROM ledger.attempt a
UNION ALL
SELECT e.id, e.attempt, e.status::text, e.scheduled_at, e.started_at, e.completed_at FROM ledger.execution e
WHERE e.completed_at IS NOT NULL AND e.attempt > 0
  AND NOT EXISTS (SELECT FROM ledger.attempt a WHERE a.execution_id = e.id AND a.attempt = e.attempt)
"""
_ATTEMPTS = f"""
SELECT t.execution_id, t.attempt, t.scheduled_at, t.started_at, t.ended_at FROM ({_ENDED_ATTEMPTS}) t
JOIN ledger.execution e ON e.id = t.execution_id WHERE e.action_ref = $1
ORDER BY t.scheduled_at, t.execution_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One physical start or stop, as the action `record` wrote it."""

    event: str
    execution_id: int
    attempt: int
    number: int
    client: int
    at: int


class History:
    """Queries to one database; many tasks may use it. Connects again after an outage."""

    def __init__(self, database_url: str, auditor: Auditor) -> None:
        self._url = database_url
        self._auditor = auditor
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._lock = asyncio.Lock()

    async def value(self, query: str, *arguments: Any) -> Any:
        """Return one value."""
        async with self._connected() as connection:
            return await connection.fetchval(query, *arguments)

    async def rows(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Return all rows."""
        async with self._connected() as connection:
            return await connection.fetch(query, *arguments)

    async def until(self, query: str, *arguments: Any, deadline_seconds: float = 20.0) -> None:
        """Wait until the query's value is true."""
        what = f"{query} {arguments}"[:500]
        await until(lambda: self.value(query, *arguments), what, deadline_seconds=deadline_seconds)

    async def ended(self, count: int, *, deadline_seconds: float = 60.0) -> None:
        """Wait until `count` executions have ended."""
        query = "SELECT count(*) >= $1 FROM ledger.execution WHERE completed_at IS NOT NULL"
        await self.until(query, count, deadline_seconds=deadline_seconds)

    async def dead_letters(self, count: int) -> list[asyncpg.Record]:
        """Wait until so many dead letters are stored; delete them and return them, the oldest first."""
        await self.until("SELECT count(*) >= $1 FROM ledger.dead_letter", count, deadline_seconds=60)
        letters = await self.rows("DELETE FROM ledger.dead_letter RETURNING *")
        assert len(letters) == count
        return sorted(letters, key=lambda letter: (letter["died_at"], letter["id"]))

    async def faults(self) -> list[str]:
        """Return the violations that `executor audit` finds."""
        return await _faults(self._auditor)

    async def attempts(self, execution_id: int) -> list[tuple[int, str]]:
        """Return number and outcome of each attempt of an execution."""
        query = f"SELECT attempt, outcome FROM ({_ENDED_ATTEMPTS}) t WHERE execution_id = $1 ORDER BY 1"
        return [(row["attempt"], row["outcome"]) for row in await self.rows(query, execution_id)]

    async def peak_attempts(self, ref: str) -> int:
        """Return the peak number of attempts of an action that ran, from start to end by their workers."""
        rows = await self.rows(_ATTEMPTS, ref)
        return peak_concurrency(
            (row["started_at"], row["ended_at"]) for row in rows if row["started_at"] is not None
        )

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._url)
            yield self._connection

    async def grant_order(self, ref: str) -> list[int]:
        """Return the ids of an action's first grants, in the order of their granting."""
        return [row["execution_id"] for row in await self.rows(_ATTEMPTS, ref) if row["attempt"] == 1]


@asynccontextmanager
async def history_of(database_url: str) -> AsyncIterator[History]:
    """Read a database; at the end of the test its audit must be clean."""
    async with _auditing(database_url) as auditor:
        history = History(database_url, auditor)
        try:
            yield history
            assert await history.faults() == []
        finally:
            await history.close()


@asynccontextmanager
async def session_of(database_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """Lend a connection of its own to a database."""
    connection = await asyncpg.connect(database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def value_in(database_url: str, query: str) -> Any:
    """Return one value of a database, over a connection of its own."""
    async with session_of(database_url) as connection:
        return await connection.fetchval(query)


@asynccontextmanager
async def _auditing(database_url: str) -> AsyncIterator[Auditor]:
    """Audit the rows; the memory is compared in the leader."""
    database = Database(database_url, application_name="audit of the test", connections_max=1)
    try:
        await database.open()
        yield Auditor(database)
    finally:
        await database.close()


async def _faults(auditor: Auditor) -> list[str]:
    found = await auditor.audit()
    return [f"{check.name}: {check.says}: {check.examples}" for check in found.checks if check.faults]


def runs_in(file: Path) -> list[RunLine]:
    """Return the lines that the action `record` wrote, in the order of writing."""
    return [RunLine(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def started_in(file: Path) -> list[int]:
    """Return the numbers of the runs in the order of their starts."""
    return [line.number for line in runs_in(file) if line.event == "start"]


def peak_runs(lines: list[RunLine]) -> int:
    """Return the peak number of concurrent runs, by the lines of the actions."""
    stops = {(line.execution_id, line.attempt): line.at for line in lines if line.event == "stop"}
    starts = [line for line in lines if line.event == "start"]
    return peak_concurrency((line.at, stops.get((line.execution_id, line.attempt))) for line in starts)
