"""One measured run: its duration, the CPU time of each process, and the WAL that was written.

A race takes a load and returns the seconds from the first publish to the end of the last execution. `rows_of`
shows runs of several kinds as rows with a column for each kind.
"""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import asyncpg

from benchmarks.client import (
    Load,
    all_ended,
    completed,
    database_session,
    publishing,
    require_no_failure,
    submit,
)
from benchmarks.report import Aim, Row
from benchmarks.system import Servers, System, cpu_seconds, running_system
from turnstile.common.broker.publisher import Publisher
from turnstile.stress.local.launcher import Deployment

Race = Callable[[Load], Awaitable[float]]

WARM_UP_MAX: Final = 500
_AIM: Final = 1.1
"""How much a condition may cost: of the rate, and of the CPU per execution."""

_WAL: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A system under test, and its processes by part."""

    race: Race
    pids: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its duration, the CPU time of each part, and the WAL of the server."""

    executions: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    wal_bytes: int

    @property
    def per_second(self) -> float:
        """Ended executions per second."""
        return self.executions / self.seconds

    def cpu_of(self, part: str) -> float:
        """Return the CPU seconds of a part, or of all."""
        return sum(self.cpu_seconds.values()) if part == "all" else self.cpu_seconds[part]

    def cpu_us(self, part: str) -> float:
        """Return the CPU microseconds per execution of a part, or of all."""
        return 1e6 * self.cpu_of(part) / max(self.executions, 1)


Runs = Mapping[str, Sequence[Run]]
"""The runs of each kind, by the name of its column."""


class Meter:
    """Measures runs on these servers, over a database session that is opened before the first run."""

    def __init__(self, servers: Servers, session: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._servers = servers
        self._session = session

    async def measure(
        self, pids: Mapping[str, Sequence[int]], work: Callable[[], Awaitable[tuple[int, float]]]
    ) -> Run:
        """Do work, which returns its executions and its seconds; `pids`: processes beside the servers."""
        parts = {**pids, **self._servers.pids}
        wal_before: int = await self._session.fetchval(_WAL)
        before = {name: cpu_seconds(of) for name, of in parts.items()}
        client_before = time.process_time()
        executions, seconds = await work()
        used = {name: cpu_seconds(of) - before[name] for name, of in parts.items()}
        used["client"] = time.process_time() - client_before
        wal_bytes: int = await self._session.fetchval(_WAL) - wal_before
        return Run(executions=executions, seconds=seconds, cpu_seconds=used, wal_bytes=wal_bytes)

    async def race(self, contestant: Contestant, load: Load) -> Run:
        """Measure one load on a contestant."""

        async def work() -> tuple[int, float]:
            return load.count, await contestant.race(load)

        return await self.measure(contestant.pids, work)


@asynccontextmanager
async def metering(servers: Servers) -> AsyncIterator[Meter]:
    """Yield a meter for these servers."""
    async with database_session(servers.postgresql.url()) as session:
        yield Meter(servers, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSystem:
    """Turnstile with workers, a publisher and a meter."""

    deployment: Deployment
    system: System
    publisher: Publisher
    meter: Meter
    deadline_seconds: float

    async def race(self, load: Load) -> float:
        """Submit a load over AMQP; return the seconds until all of it has ended."""
        before = await completed(self.system.api, list(load.counts))
        began_at = await submit(self.publisher, load.messages)
        ended_at = await all_ended(
            self.system.api,
            {ref: before[ref] + count for ref, count in load.counts.items()},
            deadline_seconds=self.deadline_seconds,
        )
        return ended_at - began_at

    def contestant(self) -> Contestant:
        """Return it as a contestant."""
        return Contestant(race=self.race, pids=self.system.pids())

    async def run(self, load: Load) -> Run:
        """Measure one load; raises DidNotHappen unless all of its executions completed."""
        run = await self.meter.race(self.contestant(), load)
        await require_no_failure(self.system.api)
        return run


@asynccontextmanager
async def measured_system(
    servers: Servers,
    purpose: str,
    *,
    deadline_seconds: float,
    executors: int = 1,
    workers: int = 2,
    concurrency: int = 50,
) -> AsyncIterator[MeasuredSystem]:
    """Yield Turnstile on a fresh database and vhost."""
    async with (
        metering(servers) as meter,
        servers.deployment(purpose) as deployment,
        running_system(deployment, executors=executors, workers=workers, concurrency=concurrency) as system,
        publishing(deployment.amqp_url) as publisher,
    ):
        yield MeasuredSystem(
            deployment=deployment,
            system=system,
            publisher=publisher,
            meter=meter,
            deadline_seconds=deadline_seconds,
        )


def rates_of(runs: Runs) -> dict[str, float]:
    """Return the median rate of each kind."""
    return {name: median(run.per_second for run in of) for name, of in runs.items()}


def ratio_rows(
    runs: Runs,
    reference: str,
    *,
    label: str | None = None,
    parts: tuple[str, ...] = ("all",),
    aimed: tuple[str, ...] = (),
) -> list[Row]:
    """Return rate and CPU per execution of each kind, divided by those of the reference.

    `label`: the reference in the names of the rows. `parts`: whose CPU; no row where it is not measured.
    `aimed`: the columns with an aim; empty: all.
    """
    rows = [
        Row(
            name=f"rate, ratio to {label or reference}",
            cells=_ratios(rates_of(runs), reference),
            aims=(Aim(at_least=1 / _AIM, columns=aimed),),
        )
    ]
    rows += [
        Row(
            name=f"CPU{'' if part == 'all' else f' of {part}'}, ratio to {label or reference}",
            cells=_ratios(cpu_us_of(runs, part), reference),
            aims=(Aim(at_most=_AIM, columns=aimed),),
        )
        for part in parts
        if part in ("all", *runs[reference][0].cpu_seconds)
    ]
    return rows


def _ratios(values: Mapping[str, float], reference: str) -> dict[str, float]:
    return {name: value / values[reference] for name, value in values.items() if name != reference}


def cpu_us_of(runs: Runs, part: str) -> dict[str, float]:
    """Return the median CPU microseconds per execution of a part, or of all, of each kind."""
    return {name: median(run.cpu_us(part) for run in of) for name, of in runs.items()}


def rows_of(runs: Runs, *, aims: Mapping[str, tuple[Aim, ...]] | None = None) -> list[Row]:
    """Return the absolute values of these runs: rate, CPU, WAL; `aims` by the name of the row."""
    parts = (*next(iter(runs.values()))[0].cpu_seconds, "all")
    busy = {name: median(run.cpu_of("all") / run.seconds for run in of) for name, of in runs.items()}
    wal = {name: median(run.wal_bytes / max(run.executions, 1) for run in of) for name, of in runs.items()}
    rows = [
        Row(name="executions", unit="1/s", cells=rates_of(runs)),
        *(Row(name=f"CPU, {part}", unit="µs per execution", cells=cpu_us_of(runs, part)) for part in parts),
        Row(name="cores busy", unit=f"of {os.cpu_count()}", cells=busy),
        Row(name="WAL", unit="bytes per execution", cells=wal),
    ]
    return [replace(row, aims=(aims or {}).get(row.name, ())) for row in rows]
