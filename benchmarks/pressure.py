"""Pressure: what neighbours of the database, and a producer that is too fast, cost an execution.

Each condition is compared with a run on the same system just before it: a snapshot held open, readers of the
hot tables, killed sessions, no free connection, an overload with its backlog. Needs servers of its own: it
takes all of their connections. All loads are no-op executions over ten actions at limit 4.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import asyncpg

from benchmarks.actions import LIMITED
from benchmarks.client import (
    APPLICATION_NAME,
    Load,
    all_ended,
    completed,
    database_session,
    load,
    require_no_failure,
    submit_evenly,
    total,
)
from benchmarks.report import Aim, Row, Section
from benchmarks.run import (
    WARM_UP_MAX,
    MeasuredSystem,
    Run,
    Runs,
    measured_system,
    ratio_rows,
    rows_of,
)
from benchmarks.system import POSTGRESQL, Servers, Sizes, cpu_seconds, leader_of, peak_memory_mb
from turnstile.common.database import Database
from turnstile.stress.check.counts import out_of_order, peak_concurrency

_ATTEMPTS: Final = """
SELECT e.action_ref, (d.body ->> 'max_concurrent')::integer AS max_concurrent, e.id AS execution_id,
       e.started_at, e.completed_at
FROM ledger.execution e
JOIN ledger.definition d ON d.kind = 'action' AND d.name = e.action_ref
WHERE e.started_at IS NOT NULL AND e.completed_at IS NOT NULL
ORDER BY e.action_ref, e.started_at, e.id
"""

_PARTS: Final = ("all", POSTGRESQL)
"""Whose CPU is compared."""
_SLICES: Final = 6
_BEFORE: Final = "before"
_AFTER: Final = "after"

_READERS: Final = 4
_TRANSACTION_SECONDS: Final = 2.0
_SCAN_PAUSE_SECONDS: Final = 0.05
_KILL_PAUSE_SECONDS: Final = 0.5

_OVERLOAD: Final = 1.5
_INSTANT_SECONDS: Final = 1e-3
_DURING: Final = "overload"
_DRAINING: Final = "backlog"

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


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Measure each condition; the snapshot and the overload on systems of their own."""
    return [await section(servers, sizes) for section in (snapshot_open, neighbours, overload)]


@asynccontextmanager
async def _warm_system(servers: Servers, sizes: Sizes) -> AsyncIterator[MeasuredSystem]:
    async with measured_system(
        servers, "pressure", deadline_seconds=sizes.deadline_seconds + sizes.overload_seconds
    ) as turnstile:
        await turnstile.run(load(LIMITED, min(WARM_UP_MAX, sizes.pressed)))
        yield turnstile


async def snapshot_open(servers: Servers, sizes: Sizes) -> Section:
    """Run slices of a load while another session holds the snapshot of its first statement."""
    count = max(sizes.held // _SLICES, 1)
    runs: dict[str, list[Run]] = {}
    async with _warm_system(servers, sizes) as turnstile:
        runs[_BEFORE] = [await turnstile.run(load(LIMITED, count))]
        async with (
            database_session(turnstile.deployment.database_url) as session,
            session.transaction(isolation="repeatable_read"),
        ):
            await session.fetchval(_ANY_ROW)
            for number in range(1, _SLICES + 1):
                runs[f"to {number * count:,}"] = [await turnstile.run(load(LIMITED, count))]
        runs[_AFTER] = [await turnstile.run(load(LIMITED, count))]
    return _snapshot_section(runs, count=count)


def _snapshot_section(runs: Runs, *, count: int) -> Section:
    """Compare each slice with the run before and with the first one; the aims are for the last one."""
    slices = [name for name in runs if name not in (_BEFORE, _AFTER)]
    last = (slices[-1],)
    return Section(
        title=f"pressure: a snapshot held open, slices of {count:,} executions",
        columns=tuple(runs),
        rows=(
            *_ratio_rows(runs, last),
            *ratio_rows(
                {name: runs[name] for name in slices},
                slices[0],
                label="the first slice",
                parts=_PARTS,
                aimed=last,
            ),
            *rows_of(runs),
        ),
        note=f"{_BEFORE}, {_AFTER}: without the snapshot",
    )


def _ratio_rows(runs: Runs, aimed: tuple[str, ...] = ()) -> list[Row]:
    return ratio_rows(runs, _BEFORE, parts=_PARTS, aimed=aimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A run beside a neighbour, and the run before it."""

    before: Run
    beside: Run
    neighbour: Mapping[str, float]
    """What the neighbour did, by the name of its row."""


async def neighbours(servers: Servers, sizes: Sizes) -> Section:
    """Run the load without a free connection, beside killed sessions, and beside readers."""
    count = sizes.pressed
    pairs: dict[str, _Pair] = {}
    async with _warm_system(servers, sizes) as turnstile:
        for name, neighbour in (
            ("no free connection", _without_connections),
            ("2 sessions killed/s", _beside_kills),
            # Last: their snapshots leave dead rows behind.
            (f"{_READERS} readers", _beside_readers),
        ):
            before = await turnstile.run(load(LIMITED, count))
            beside, did = await neighbour(servers, turnstile, count)
            pairs[name] = _Pair(before=before, beside=beside, neighbour=did)
    return _neighbours_section(pairs, count=count)


def _neighbours_section(pairs: Mapping[str, _Pair], *, count: int) -> Section:
    """Compare the run beside each neighbour with the run before it."""
    both = {name: {_BEFORE: [pair.before], name: [pair.beside]} for name, pair in pairs.items()}
    compared = [_ratio_rows(runs) for runs in both.values()]
    rows = [
        replace(of_kind[0], cells={name: value for row in of_kind for name, value in row.cells.items()})
        for of_kind in zip(*compared, strict=True)
    ]
    did = {row for pair in pairs.values() for row in pair.neighbour}
    for name in sorted(did):
        cells = {column: pair.neighbour[name] for column, pair in pairs.items() if name in pair.neighbour}
        rows.append(Row(name=name, cells=cells))
    before = rows_of({name: [pair.before] for name, pair in pairs.items()})
    beside = rows_of({name: [pair.beside] for name, pair in pairs.items()})
    for first, second in zip(before, beside, strict=True):
        rows += [
            replace(first, name=f"{first.name}, {_BEFORE}"),
            replace(second, name=f"{second.name}, beside"),
        ]
    return Section(
        title=f"pressure: neighbours of the database, {count:,} executions each",
        columns=tuple(pairs),
        rows=tuple(rows),
        note="the CPU of the readers themselves is not counted as PostgreSQL's",
    )


async def _without_connections(
    servers: Servers, turnstile: MeasuredSystem, count: int
) -> tuple[Run, Mapping[str, float]]:
    """Take every connection that the server has left."""
    async with AsyncExitStack() as stack:
        taken = 0
        while True:
            try:
                await stack.enter_async_context(database_session(servers.postgresql.url()))
            except asyncpg.TooManyConnectionsError:
                break
            taken += 1
        run = await turnstile.run(load(LIMITED, count))
    return run, {"connections taken": taken}


async def _beside_kills(
    servers: Servers, turnstile: MeasuredSystem, count: int
) -> tuple[Run, Mapping[str, float]]:
    """Kill a session of the services every half second."""
    del servers
    killed, stop = 0, asyncio.Event()

    async def kill() -> None:
        nonlocal killed
        while not stop.is_set():
            killed += bool(await session.fetchval(_KILL_ONE, APPLICATION_NAME))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _KILL_PAUSE_SECONDS)

    async with database_session(turnstile.deployment.database_url) as session, _beside([kill()], stop):
        run = await turnstile.run(load(LIMITED, count))
    return run, {"sessions killed": killed}


async def _beside_readers(
    servers: Servers, turnstile: MeasuredSystem, count: int
) -> tuple[Run, Mapping[str, float]]:
    """Scan the hot tables in overlapping transactions, each with a snapshot of its own."""
    scans, stop = 0, asyncio.Event()

    async def read(session: "asyncpg.Connection[asyncpg.Record]", delay_seconds: float) -> None:
        nonlocal scans
        await asyncio.sleep(delay_seconds)
        while not stop.is_set():
            async with session.transaction(isolation="repeatable_read"):
                until = time.monotonic() + _TRANSACTION_SECONDS
                while time.monotonic() < until and not stop.is_set():
                    await session.fetch(statement)
                    scans += 1
                    await asyncio.sleep(_SCAN_PAUSE_SECONDS)

    async with AsyncExitStack() as stack:
        url = turnstile.deployment.database_url
        sessions = [await stack.enter_async_context(database_session(url)) for _ in range(_READERS)]
        statement = " UNION ALL ".join(
            f"SELECT count(*) FROM {row[0]}" for row in await sessions[0].fetch(_HOT_TABLES)
        )
        for session in sessions:
            # The CPU of parallel workers could not be told from that of the services.
            await session.execute("SET max_parallel_workers_per_gather = 0")
        pids = [session.get_server_pid() for session in sessions] if servers.pids else []
        works = [
            read(session, number * _TRANSACTION_SECONDS / _READERS) for number, session in enumerate(sessions)
        ]
        await stack.enter_async_context(_beside(works, stop))
        used_before = cpu_seconds(pids)
        run = await turnstile.run(load(LIMITED, count))
        used = cpu_seconds(pids) - used_before
    if pids:
        own = {**run.cpu_seconds, POSTGRESQL: run.cpu_seconds[POSTGRESQL] - used}
        run = replace(run, cpu_seconds=own)
    return run, {"scans per second": scans / run.seconds, "cores that the readers used": used / run.seconds}


async def overload(servers: Servers, sizes: Sizes) -> Section:
    """Submit more than can run for a while, then let the backlog run."""
    count = sizes.pressed
    async with _warm_system(servers, sizes) as turnstile:
        before = await turnstile.run(load(LIMITED, count))
        memory_before = _peak_memory_mb(turnstile)
        rate = before.per_second * _OVERLOAD
        # Whole rounds over the actions, so that every action gets equally many.
        too_much = load(LIMITED, max(round(rate * sizes.overload_seconds / len(LIMITED)), 1) * len(LIMITED))
        done = await completed(turnstile.system.api, LIMITED)
        during = await _overloaded(turnstile, too_much, rate)
        backlog = too_much.count - during.executions
        expected = {ref: done[ref] + too_much.counts[ref] for ref in LIMITED}
        memory = {_DURING: _peak_memory_mb(turnstile)}
        draining = await _drain(turnstile, expected, backlog)
        memory[_DRAINING] = _peak_memory_mb(turnstile)
        await require_no_failure(turnstile.system.api)
        refused = sum(expected.values()) - await total(turnstile.system.api, LIMITED, "total_enqueued")
        violations = await _violations(turnstile.deployment.database_url)
    runs = {_BEFORE: [before], _DURING: [during], _DRAINING: [draining]}
    section = _overload_section(runs, violations, submitted_per_second=rate, backlog=backlog)
    # A submission that the broker does not confirm ends the measurement.
    answers = {"confirmed": too_much.count, "refused": refused}
    memory = {_BEFORE: memory_before, **memory}
    return replace(section, rows=(*section.rows, *_answer_rows(answers), *_memory_rows(memory)))


def _peak_memory_mb(turnstile: MeasuredSystem) -> dict[str, float]:
    """Return the peak memory of the largest process of each part so far."""
    pids = turnstile.system.pids()
    parts = {**pids, "leader": map(leader_of, pids["executors"])}
    return {part: max(map(peak_memory_mb, of)) for part, of in parts.items()}


def _answer_rows(answers: Mapping[str, int]) -> list[Row]:
    return [
        Row(
            name=f"submissions that were {outcome}",
            cells={_DURING: count},
            aims=(Aim(at_most=0),) if outcome == "refused" else (),
        )
        for outcome, count in answers.items()
    ]


def _memory_rows(memory: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return the peak memory of each part at the end of each phase."""
    parts = memory[_BEFORE]
    return [
        Row(name=f"peak memory, {part}", unit="MB", cells={phase: of[part] for phase, of in memory.items()})
        for part in parts
    ]


async def _overloaded(turnstile: MeasuredSystem, too_much: Load, per_second: float) -> Run:
    """Submit at an even pace, and measure what runs meanwhile."""
    api = turnstile.system.api

    async def work() -> tuple[int, float]:
        before = await total(api, LIMITED, "total_completed")
        seconds = await submit_evenly(turnstile.publisher, too_much, per_second)
        return await total(api, LIMITED, "total_completed") - before, seconds

    return await turnstile.meter.measure(turnstile.system.pids(), work)


async def _drain(turnstile: MeasuredSystem, expected: Mapping[str, int], backlog: int) -> Run:
    """Measure the backlog until all of it has run."""

    async def work() -> tuple[int, float]:
        began_at = time.time()
        ended_at = await all_ended(
            turnstile.system.api, expected, deadline_seconds=turnstile.deadline_seconds
        )
        return backlog, max(ended_at - began_at, _INSTANT_SECONDS)

    return await turnstile.meter.measure(turnstile.system.pids(), work)


async def _violations(database_url: str) -> tuple[int, int]:
    """Return how many executions started out of order, and how many ran at once above a limit."""
    database = Database(database_url, application_name=APPLICATION_NAME)
    await database.open()
    try:
        rows = await database.fetch(_ATTEMPTS)
    finally:
        await database.close()
    late, above = 0, 0
    for (_, limit), grouped in groupby(rows, lambda row: (row["action_ref"], row["max_concurrent"])):
        attempts = list(grouped)
        late += len(out_of_order(row["execution_id"] for row in attempts))
        if limit is not None:
            held = peak_concurrency((row["started_at"], row["completed_at"]) for row in attempts)
            above = max(above, held - limit)
    return late, above


def _overload_section(
    runs: Runs, violations: tuple[int, int], *, submitted_per_second: float, backlog: int
) -> Section:
    """Compare the rates during the overload and of the backlog with the rate before; check the history."""
    late, above = violations
    whole = (Aim(at_most=0),)
    return Section(
        title=f"pressure: {_OVERLOAD:g} times what can run, then the backlog",
        columns=tuple(runs),
        rows=(
            *_ratio_rows(runs),
            Row(name="starts out of order", unit="in all", cells={_DRAINING: late}, aims=whole),
            Row(name="running above the limit", unit="at most", cells={_DRAINING: above}, aims=whole),
            Row(name="submitted", unit="1/s", cells={_DURING: submitted_per_second}),
            Row(name="waiting at the end", cells={_DURING: backlog, _DRAINING: 0}),
            Row(name="duration", unit="s", cells={name: of[0].seconds for name, of in runs.items()}),
            *rows_of(runs),
        ),
        note=f"{os.cpu_count()} cores; {_DURING}: the producer shares them",
    )


@asynccontextmanager
async def _beside(works: Iterable[Coroutine[Any, Any, None]], stop: asyncio.Event) -> AsyncIterator[None]:
    """Do these works, which end soon after `stop`, beside the block; raises the first error of a work."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        stop.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
