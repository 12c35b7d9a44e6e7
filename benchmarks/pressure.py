"""Pressure: what neighbours of the database, and a producer that is too fast, cost an execution.

Each is compared with runs on the same system just before and after it. Needs servers of its own: one
neighbour takes all of their connections. All loads are no-op executions over ten actions at limit 4.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

import asyncpg

from benchmarks.actions import LIMITED
from benchmarks.client import APPLICATION_NAME, Load, database_session, load, submit_evenly
from benchmarks.processes import cpu_seconds
from benchmarks.report import Aim, Row, Section
from benchmarks.run import Run, Runs, ratio_rows, rows_of
from benchmarks.system import POSTGRESQL, Servers, Sizes, System, running_system
from benchmarks.waiting import beside
from turnstile.stress.check.counts import out_of_order, peak_concurrency

if TYPE_CHECKING:
    from benchmarks.client import Session

_PARTS: Final = ("all", POSTGRESQL)
"""Whose CPU is compared."""
_WITHOUT: Final = "without"
_OVERLOAD: Final = "overload"
_BACKLOG: Final = "backlog"
_TOO_MUCH: Final = 1.5
_AT_ONCE: Final = 20_000
_READERS: Final = 4
_TRANSACTION_SECONDS: Final = 2.0
_SCAN_PAUSE_SECONDS: Final = 0.05
_KILL_PAUSE_SECONDS: Final = 0.5
_INSTANT_SECONDS: Final = 1e-3

_HOT_TABLES: Final = """
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace = 'ledger'::regnamespace AND c.relkind = 'r'
  AND c.relname !~ '^(execution|attempt)'
ORDER BY c.relname
"""
_ANY_ROW: Final = "SELECT count(*) FROM pg_class"
_KILL_ONE: Final = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.application_name <> $1
ORDER BY random() LIMIT 1
"""
_ATTEMPTS: Final = """
SELECT e.action_ref, (d.body ->> 'max_concurrent')::integer AS max_concurrent, e.id AS execution_id,
       e.started_at, e.completed_at
FROM ledger.execution e
JOIN ledger.definition d ON d.kind = 'action' AND d.name = e.action_ref
WHERE e.started_at IS NOT NULL AND e.completed_at IS NOT NULL
ORDER BY e.action_ref, e.started_at, e.id
"""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Measure each neighbour, then the overload."""
    return [await neighbours(servers, sizes), await overload(servers, sizes)]


@asynccontextmanager
async def _warm_system(servers: Servers, sizes: Sizes) -> AsyncIterator[System]:
    longer = replace(sizes, deadline_seconds=sizes.deadline_seconds + sizes.overload_seconds)
    async with running_system(servers, "pressure", longer) as system:
        await system.warm_up(LIMITED, sizes.share(2))
        yield system


async def _run_in_parts(system: System, count: int) -> Run:
    """Run so many executions with a bounded backlog."""
    runs = [
        await system.run(load(LIMITED, min(_AT_ONCE, count - begun))) for begun in range(0, count, _AT_ONCE)
    ]
    return Run(
        executions=count,
        seconds=sum(run.seconds for run in runs),
        cpu_seconds={part: sum(run.cpu_seconds[part] for run in runs) for part in runs[0].cpu_seconds},
        wal_bytes=sum(run.wal_bytes for run in runs),
    )


@dataclass(slots=True)
class _Neighbour:
    """What a neighbour did: a number by the name of its row, and the sessions whose CPU is its own."""

    count: int = 0
    row: str = ""
    pids: tuple[int, ...] = ()


@asynccontextmanager
async def _snapshot(system: System, sizes: Sizes) -> AsyncIterator[_Neighbour]:
    """Hold the snapshot of a first statement open while executions pass."""
    async with (
        database_session(system.deployment.database_url) as session,
        session.transaction(isolation="repeatable_read"),
    ):
        await session.fetchval(_ANY_ROW)
        await _run_in_parts(system, sizes.held)
        yield _Neighbour(count=sizes.held, row="executions under the snapshot before")


@asynccontextmanager
async def _no_connection(system: System, _: Sizes) -> AsyncIterator[_Neighbour]:
    """Take every connection that the server has left."""
    neighbour = _Neighbour(row="connections taken")
    async with AsyncExitStack() as stack:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                await stack.enter_async_context(database_session(system.servers.postgresql.url()))
                neighbour.count += 1
        yield neighbour


@asynccontextmanager
async def _kills(system: System, _: Sizes) -> AsyncIterator[_Neighbour]:
    """Kill a session of the services every half second."""
    neighbour = _Neighbour(row="sessions killed")

    async def kill(session: "Session") -> None:
        while True:
            neighbour.count += bool(await session.fetchval(_KILL_ONE, APPLICATION_NAME))
            await asyncio.sleep(_KILL_PAUSE_SECONDS)

    async with database_session(system.deployment.database_url) as session, beside([kill(session)]):
        yield neighbour


@asynccontextmanager
async def _readers(system: System, _: Sizes) -> AsyncIterator[_Neighbour]:
    """Scan the hot tables in overlapping transactions, each with a snapshot of its own."""
    neighbour = _Neighbour(row="scans of the readers")

    async def read(session: "Session", delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        while True:
            async with session.transaction(isolation="repeatable_read"):
                until = time.monotonic() + _TRANSACTION_SECONDS
                while time.monotonic() < until:
                    await session.fetch(statement)
                    neighbour.count += 1
                    await asyncio.sleep(_SCAN_PAUSE_SECONDS)

    async with AsyncExitStack() as stack:
        url = system.deployment.database_url
        sessions = [await stack.enter_async_context(database_session(url)) for _ in range(_READERS)]
        statement = " UNION ALL ".join(
            f"SELECT count(*) FROM {row[0]}" for row in await sessions[0].fetch(_HOT_TABLES)
        )
        for session in sessions:
            # The CPU of parallel workers could not be told from that of the services.
            await session.execute("SET max_parallel_workers_per_gather = 0")
        neighbour.pids = tuple(session.get_server_pid() for session in sessions)
        delays = [number * _TRANSACTION_SECONDS / _READERS for number in range(_READERS)]
        works = [read(session, delay) for session, delay in zip(sessions, delays, strict=True)]
        await stack.enter_async_context(beside(works))
        yield neighbour


_NEIGHBOURS: Final[Mapping[str, Callable[[System, Sizes], AbstractAsyncContextManager[_Neighbour]]]] = {
    "a snapshot held open": _snapshot,
    "no free connection": _no_connection,
    "2 sessions killed/s": _kills,
    f"{_READERS} readers": _readers,
}


async def neighbours(servers: Servers, sizes: Sizes) -> Section:
    """Run the load before, beside and after each neighbour, each on a system of its own."""
    without: dict[str, list[Run]] = {}
    meanwhile: dict[str, list[Run]] = {}
    did: list[Row] = []
    for name, neighbour in _NEIGHBOURS.items():
        # Autovacuum visits the dead rows once a minute, in vain: a second would meet it or not.
        count = sizes.held if neighbour is _snapshot else sizes.executions
        async with _warm_system(servers, sizes) as system:
            without[name] = [await _run_in_parts(system, count)]
            async with neighbour(system, sizes) as it:
                used_before = cpu_seconds(it.pids)
                run = await _run_in_parts(system, count)
                used = cpu_seconds(it.pids) - used_before
            without[name].append(await _run_in_parts(system, count))
        if POSTGRESQL in run.cpu_seconds:
            own = {**run.cpu_seconds, POSTGRESQL: run.cpu_seconds[POSTGRESQL] - used}
            run = replace(run, cpu_seconds=own)
        meanwhile[name] = [run]
        did.append(Row(name=it.row, cells={name: it.count}))
    return Section(
        title="pressure: neighbours of the database",
        columns=tuple(without),
        rows=(
            *_ratios(without, meanwhile),
            *did,
            *(replace(row, name=f"{row.name}, without") for row in rows_of(without)),
            *(replace(row, name=f"{row.name}, beside") for row in rows_of(meanwhile)),
        ),
        note="the CPU of the readers themselves is not counted as PostgreSQL's",
    )


def _ratios(without: Runs, meanwhile: Runs) -> list[Row]:
    """Return a row of ratios with a cell for each neighbour."""
    of_each = [
        ratio_rows({_WITHOUT: without[name], name: meanwhile[name]}, _WITHOUT, parts=_PARTS)
        for name in without
    ]
    return [
        replace(rows[0], cells={name: value for row in rows for name, value in row.cells.items()})
        for rows in zip(*of_each, strict=True)
    ]


async def overload(servers: Servers, sizes: Sizes) -> Section:
    """Submit more than can run for a while, then let the backlog run, and check the whole history."""
    async with _warm_system(servers, sizes) as system:
        before = await system.run(load(LIMITED, sizes.executions * 2))
        rate = before.per_second * _TOO_MUCH
        # Whole rounds over the actions, so that every action gets equally many.
        too_much = load(LIMITED, max(round(rate * sizes.overload_seconds / len(LIMITED)), 1) * len(LIMITED))
        done = await system.totals(LIMITED)
        expected = {ref: done[ref] + too_much.counts[ref] for ref in LIMITED}
        during = await _overloaded(system, too_much, rate)
        backlog = too_much.count - during.executions
        draining = await _drained(system, expected, backlog)
        await system.require_no_failure()
        admitted = sum((await system.totals(LIMITED, "total_enqueued")).values())
        after = await system.run(load(LIMITED, sizes.executions * 2))
        late, above = await _violations(system.session)
    runs = {_WITHOUT: [before, after], _OVERLOAD: [during], _BACKLOG: [draining]}
    none = (Aim(at_most=0),)
    refused = sum(expected.values()) - admitted
    return Section(
        title=f"pressure: {_TOO_MUCH:g} times what can run, then the backlog",
        columns=tuple(runs),
        rows=(
            *ratio_rows(runs, _WITHOUT, parts=_PARTS),
            Row(name="starts out of order", cells={_BACKLOG: late}, aims=none),
            Row(name="running above the limit", cells={_BACKLOG: above}, aims=none),
            # A submission that the broker does not confirm ends the measurement.
            Row(name="submissions refused", cells={_OVERLOAD: refused}, aims=none),
            Row(name="submitted", unit="1/s", cells={_OVERLOAD: rate}),
            Row(name="waiting at the end", cells={_OVERLOAD: backlog, _BACKLOG: 0}),
            Row(name="duration", unit="s", cells={name: of[0].seconds for name, of in runs.items()}),
            *rows_of(runs),
        ),
        note=f"{os.cpu_count()} cores; {_OVERLOAD}: the producer shares them",
    )


async def _overloaded(system: System, too_much: Load, per_second: float) -> Run:
    """Submit at an even pace, and measure what runs meanwhile."""

    async def work() -> tuple[int, float]:
        before = sum((await system.totals(LIMITED)).values())
        seconds = await submit_evenly(system.publisher, too_much, per_second)
        return sum((await system.totals(LIMITED)).values()) - before, seconds

    return await system.measure(work)


async def _drained(system: System, expected: Mapping[str, int], backlog: int) -> Run:
    """Measure the backlog until all of it has run."""

    async def work() -> tuple[int, float]:
        began_at = time.time()
        await system.all_ended(expected)
        return backlog, max(await system.last_end() - began_at, _INSTANT_SECONDS)

    return await system.measure(work)


async def _violations(session: "Session") -> tuple[int, int]:
    """Return how many executions started out of order, and how many ran at once above a limit."""
    late, above = 0, 0
    rows = await session.fetch(_ATTEMPTS)
    for (_, limit), grouped in groupby(rows, lambda row: (row["action_ref"], row["max_concurrent"])):
        attempts = list(grouped)
        late += len(out_of_order(row["execution_id"] for row in attempts))
        held = peak_concurrency((row["started_at"], row["completed_at"]) for row in attempts)
        above = max(above, held - limit)
    return late, above
