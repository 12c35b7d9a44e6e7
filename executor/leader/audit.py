"""Compares what the leader remembers with the rows: once a minute, between two turns.

In: the state, and a snapshot of the database that begins before the next turn. Out: what differs, in
sentences. Both sides are summed up (counts, and sums of ids), so a comparison costs a scan in the database,
and of the leader's time only the sums. A difference is a bug: the leader reports it and loads again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from turnstile.common.database import DatabaseHosts
from turnstile.executor.leader.ledger_session import Session
from turnstile.executor.leader.ports import OutcomeUnknown
from turnstile.executor.metrics import DRIFT_FOUND
from turnstile.executor.queue_manager.state import State
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    from turnstile.executor.leader.ledger_session import Connection

logger = logging.getLogger(__name__)

EVERY_SECONDS: Final = 60.0
_BEGIN_SECONDS: Final = 1.0
"""How long the turns wait for a snapshot; then the comparison is left out."""
_CONNECT_SECONDS: Final = 2.0
_AUDIT_SECONDS: Final = 60.0
_SHOWN_MAX: Final = 20

Sums: TypeAlias = Mapping[tuple[object, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What lives, in sums."""

    waiting: Sums = field(default_factory=dict)
    """By action and priority: executions, sum of ids, keys."""
    recorded: Sums = field(default_factory=dict)
    """By status, of what has a row of its own: executions, sums of ids, attempts, failures and reclaims, and
    how many were asked to stop."""
    held: Sums = field(default_factory=dict)
    """By worker: executions, sum of ids."""
    units: Sums = field(default_factory=dict)
    """By resource: units that are held."""

    def differences(self, rows: "Digest") -> list[str]:
        """Return what differs between the memory and the rows, a bounded number of sentences."""
        found = [
            f"{each.name} {' '.join(map(str, key))}: memory {mine}, rows {theirs}"
            for each in fields(self)
            for key, mine, theirs in _different(getattr(self, each.name), getattr(rows, each.name))
        ]
        return found[:_SHOWN_MAX]


def _different(
    mine: Sums, theirs: Sums
) -> Iterator[tuple[tuple[object, ...], tuple[int, ...] | None, tuple[int, ...] | None]]:
    for key in sorted({*mine, *theirs}, key=str):
        if mine.get(key) != theirs.get(key):
            yield key, mine.get(key), theirs.get(key)


def digest_of(state: State) -> Digest:
    """Return the sums of what the leader remembers."""
    recorded: dict[tuple[object, ...], list[int]] = {}
    for each in state.executions.values():
        if each.is_recorded:
            sums = recorded.setdefault((str(each.status),), [0] * 6)
            values = 1, each.id, each.attempt, each.failures, each.reclaims, each.cancel_reason is not None
            for index, value in enumerate(values):
                sums[index] += value
    return Digest(
        waiting=_waiting(state),
        recorded={key: tuple(sums) for key, sums in recorded.items()},
        held={
            (worker.id,): (len(worker.held), sum(worker.held))
            for worker in state.workers.values()
            if worker.held
        },
        units={(name,): (gate.held,) for name, gate in state.resources.items() if gate.held},
    )


def _waiting(state: State) -> Sums:
    found: dict[tuple[object, ...], tuple[int, ...]] = {}
    for ref, action in state.actions.items():
        of_action: dict[int, list[int]] = {}
        for queue in action.queues.values():
            for priority, waiting in queue.waiting.items():
                sums = of_action.get(priority)
                if sums is None:
                    sums = of_action[priority] = [0, 0, 0]
                sums[0] += waiting.length
                sums[1] += sum(waiting)
                sums[2] += 1
        found |= {(ref, priority): tuple(sums) for priority, sums in of_action.items()}
    return found


class Rows:
    """One snapshot of the rows."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    async def digest(self) -> Digest:
        """Return the sums of the rows. Raises OutcomeUnknown."""
        return Digest(
            waiting=await self._sums("audit_waiting", keys=2),
            recorded=await self._sums("audit_recorded", keys=1),
            held=await self._sums("audit_held", keys=1),
            units=await self._sums("audit_units", keys=1),
        )

    async def _sums(self, name: str, *, keys: int) -> Sums:
        rows = [tuple(row) for row in await self._connection.fetch(statements("leader/audit.sql")[name])]
        return {row[:keys]: tuple(map(int, row[keys:])) for row in rows}


class Auditor:
    """Compares the memory of a leader with the rows from time to time, beside its turns."""

    def __init__(self, database_url: str, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._rows = RowAudit(database_url)
        self._every_seconds = every_seconds
        self._due_at = 0.0
        self._state: State | None = None
        """Of the leadership that the present comparison is about."""
        self._comparing: asyncio.Task[list[str]] | None = None
        self.done = 0
        """How many comparisons were finished."""
        self.found: tuple[str, ...] = ()
        """What the last one that found something has found."""

    async def look(self, state: State) -> Sequence[str]:
        """Call it between two turns: begin a comparison that is due; return what the last one has found."""
        now = asyncio.get_running_loop().time()
        if state is not self._state:
            # A load has just read the rows.
            await self._stop()
            self._state, self._due_at = state, now + self._every_seconds
        comparing = self._comparing
        if comparing is None:
            if now >= self._due_at:
                self._due_at = now + self._every_seconds
                await self._begin(state)
            return ()
        if not comparing.done():
            return ()
        self._comparing = None
        found = comparing.result()
        self.done += 1
        if found:
            self.found = tuple(found)
            DRIFT_FOUND.add()
            logger.error("memory_differs", extra={"differences": found})
        return found

    async def _begin(self, state: State) -> None:
        """Return once both sides are fixed: no turn may come between them."""
        is_fixed = asyncio.Event()
        self._comparing = asyncio.create_task(self._compare(state, is_fixed), name="audit")
        waiting = asyncio.create_task(is_fixed.wait())
        try:
            await asyncio.wait(
                {waiting, self._comparing}, timeout=_BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if not is_fixed.is_set():
            await self._stop()

    async def _compare(self, state: State, is_fixed: asyncio.Event) -> list[str]:
        try:
            async with self._rows.snapshot() as rows:
                mine = digest_of(state)
                is_fixed.set()
                return mine.differences(await rows.digest())
        except (OutcomeUnknown, asyncpg.PostgresError) as error:
            logger.info("audit_not_done", extra={"reason": str(error) or type(error).__name__})
            return []

    async def _stop(self) -> None:
        comparing, self._comparing = self._comparing, None
        if comparing is not None:
            comparing.cancel()
            await asyncio.wait({comparing})

    async def close(self) -> None:
        """End a comparison, and close the session."""
        await self._stop()
        await self._rows.close()


class RowAudit:
    """Reads the rows of one ledger, on a session of its own."""

    def __init__(self, database_url: str) -> None:
        hosts = DatabaseHosts(database_url, connect_seconds=_CONNECT_SECONDS)
        self._session = Session(
            hosts, application_name="turnstile audit", seconds=_AUDIT_SECONDS, settings={"work_mem": "64MB"}
        )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Rows]:
        """Take a snapshot now, and lend it. Raises OutcomeUnknown."""
        async with (
            self._session.use() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            # The first statement of a transaction takes its snapshot.
            await connection.execute("SELECT 1")
            yield Rows(connection)

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()
