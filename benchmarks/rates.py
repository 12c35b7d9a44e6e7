"""Rates: no-op executions at several limits, submitted evenly at several rates and then all at once.

Out: for each limit and rate the latency from the admission to the end, and the CPU time per execution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import asyncpg

from benchmarks.actions import LIMITED
from benchmarks.client import Load, all_ended, completed, database_session, load, submit_evenly
from benchmarks.report import Row, Section
from benchmarks.run import WARM_UP_MAX, MeasuredSystem, Run, measured_system
from benchmarks.system import Servers, Sizes

_LIMITS: Final = (1, 4, 40, 400)
_RATES: Final = (1, 10, 100, 400)
_MAXIMUM: Final = "maximum"
_LATENCIES: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
    ORDER BY 1000 * extract(epoch FROM e.completed_at - e.queued_at)::double precision)
FROM ledger.execution e WHERE e.id > $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One limit at one rate; no latencies at the maximum, where they are those of the backlog."""

    run: Run
    latencies_ms: tuple[float, float] | None = None
    """The median, and the 99th percentile."""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Submit to ten actions at each rate, under each limit in turn."""
    cells: dict[int, dict[str, Cell]] = {}
    async with (
        measured_system(servers, "rates", deadline_seconds=sizes.deadline_seconds) as turnstile,
        database_session(turnstile.deployment.database_url) as session,
    ):
        await turnstile.run(load(LIMITED, min(WARM_UP_MAX, sizes.executions)))
        for limit in _LIMITS:
            for ref in LIMITED:
                await turnstile.system.limit(ref, limit)
            of_limit = cells[limit] = {}
            for rate in _RATES:
                paced = load(LIMITED, max(round(rate * sizes.paced_seconds), 1))
                of_limit[_column(rate)] = await _paced(turnstile, session, paced, rate)
            of_limit[_MAXIMUM] = Cell(run=await turnstile.run(load(LIMITED, sizes.executions)))
    return [section_of(cells)]


def _column(rate: int) -> str:
    return f"{rate}/s"


async def _paced(
    turnstile: MeasuredSystem, session: "asyncpg.Connection[asyncpg.Record]", paced: Load, rate: int
) -> Cell:
    """Submit at an even pace, and wait for the last end."""
    api = turnstile.system.api
    last_id: int = await session.fetchval("SELECT coalesce(max(id), 0) FROM ledger.execution")
    before = await completed(api, list(paced.counts))

    async def work() -> tuple[int, float]:
        seconds = await submit_evenly(turnstile.publisher, paced, rate)
        expected = {ref: before[ref] + count for ref, count in paced.counts.items()}
        await all_ended(api, expected, deadline_seconds=turnstile.deadline_seconds)
        return paced.count, seconds

    run = await turnstile.meter.measure(turnstile.system.pids(), work)
    median, high = await session.fetchval(_LATENCIES, last_id)
    return Cell(run=run, latencies_ms=(median, high))


def section_of(cells: Mapping[int, Mapping[str, Cell]]) -> Section:
    """Return the rows of each limit."""
    rows = []
    for limit, of_limit in cells.items():
        for index, name in enumerate(("p50", "p99")):
            latencies = {
                column: cell.latencies_ms[index] for column, cell in of_limit.items() if cell.latencies_ms
            }
            rows.append(Row(name=f"limit {limit}, {name}", unit="ms", cells=latencies))
        cpu = {column: cell.run.cpu_us("all") for column, cell in of_limit.items()}
        rows.append(Row(name=f"limit {limit}, CPU, all", unit="µs per execution", cells=cpu))
        fastest = {_MAXIMUM: of_limit[_MAXIMUM].run.per_second}
        rows.append(Row(name=f"limit {limit}, executions", unit="1/s", cells=fastest))
    return Section(
        title="rates: no-op executions over 10 actions, 1 executor, 2 workers",
        columns=(*map(_column, _RATES), _MAXIMUM),
        rows=tuple(rows),
        note="latency from the admission to the end; at a low rate the CPU is mostly that of the idle system",
    )
