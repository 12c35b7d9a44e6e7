"""Gates: what limits cost that executions of several queues share, compared with the same load without them.

Out: rates with a shared resource and with a fair total, as ratios to the load without; the cost of a grant by
the number of executions that wait at a resource; how far a rate is used, and whether it was ever exceeded.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Self

import asyncpg

from benchmarks.actions import (
    LIMITED,
    RATE_SECONDS,
    RATE_STARTS,
    RATED,
    SHARED,
    SHARED_UNITS,
    SPREAD,
    TOTALED,
)
from benchmarks.client import database_session, load
from benchmarks.depth import FilledQueue, interleaved_medians
from benchmarks.report import Aim, Row, Section
from benchmarks.run import WARM_UP_MAX, MeasuredSystem, Run, Runs, measured_system, rates_of, rows_of
from benchmarks.system import Servers, Sizes
from turnstile.stress.installation import action_path, resource_path

_LIMITED: Final = "10 actions, limit 4"
_SHARED: Final = f"10 actions, one resource of {SHARED_UNITS}"
_SPREAD: Final = "keys, limit 2"
_TOTALED: Final = "keys, limit 2, fair total"
_RESOURCE: Final = "bench"
_TOTAL: Final = 200
_KEYS_MAX: Final = 1000
_AIM_DEPTH_RATIO: Final = 1.2
_DEPTH_MAX: Final = 100_000

_CREATE: Final = """
WITH resource AS (
    INSERT INTO gate (kind, name, capacity, fair) VALUES ('resource', $1, 1, $2::boolean) RETURNING id
),
empty AS (
    INSERT INTO gate_state (gate_id, version, held, depth, head_id, virtual_times, starts_taken, updated_at)
    SELECT r.id, 1, 0, 0, 0, '{0,0,0,0,0}', 0, clock_timestamp() FROM resource r
),
defined AS (
    INSERT INTO action (ref, uses)
    VALUES ($1, jsonb_build_array(jsonb_build_object('resource', $1::text, 'units', 1, 'weight', 1)))
    RETURNING id
),
created AS (INSERT INTO action_queue (action_id) SELECT d.id FROM defined d RETURNING id)
INSERT INTO queue_state (queue_id, version, depth, held, head_id, total_enqueued, total_completed, updated_at)
SELECT c.id, 1, 0, 0, 0, 0, 0, clock_timestamp() FROM created c RETURNING queue_id
"""
_REROUTE: Final = """
SELECT turnstile.reroute(ARRAY[q.action_id]) FROM action_queue q WHERE q.id = $1
"""
_GRANTED_ATS: Final = """
SELECT (e.gates -> -1 ->> 'passed_at')::timestamptz AS granted_at
FROM execution e JOIN action a ON a.id = e.action_id WHERE a.ref = $1 AND e.id > $2 ORDER BY granted_at
"""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Measure shared limits, then a rate, then grants behind queues of several lengths."""
    async with measured_system(servers, "gates", deadline_seconds=sizes.deadline_seconds) as turnstile:
        sections = [await _shared(turnstile, sizes), await _rate(turnstile, sizes)]
    return [*sections, await _depth(servers, sizes)]


async def _shared(turnstile: MeasuredSystem, sizes: Sizes) -> Section:
    api = turnstile.system.api
    await api.put(resource_path(_RESOURCE), {"capacity": SHARED_UNITS})
    for ref in SHARED:
        await api.change(action_path(ref), {"uses": [{"resource": _RESOURCE}]})
    await api.change(action_path(TOTALED), {"max_concurrent_total": _TOTAL, "order": "fair"})
    keys = min(_KEYS_MAX, sizes.keys_max)
    kinds = {
        _LIMITED: (LIMITED, 0),
        _SHARED: (SHARED, 0),
        _SPREAD: ((SPREAD,), keys),
        _TOTALED: ((TOTALED,), keys),
    }
    for refs, number in kinds.values():
        # Every key is used once before it is measured.
        await turnstile.run(load(refs, max(min(WARM_UP_MAX, sizes.gated), number), keys=number))
    runs: dict[str, list[Run]] = {name: [] for name in kinds}
    for _ in range(sizes.rounds):
        for name, (refs, number) in kinds.items():
            runs[name].append(await turnstile.run(load(refs, sizes.gated, keys=number)))
    return section_of(runs, count=sizes.gated, keys=keys)


def section_of(runs: Runs, *, count: int, keys: int) -> Section:
    """Compare the loads with gates with those without."""
    rates = rates_of(runs)
    return Section(
        title=f"gates: {count:,} no-op executions; {keys:,} keys; a total of {_TOTAL}",
        columns=tuple(runs),
        rows=(
            Row(
                name="rate, ratio to limit 4",
                cells={_SHARED: rates[_SHARED] / rates[_LIMITED]},
                aims=(Aim(at_least=0.7),),
            ),
            Row(
                name="rate, ratio to no total",
                cells={_TOTALED: rates[_TOTALED] / rates[_SPREAD]},
                aims=(Aim(at_least=0.5),),
            ),
            *rows_of(runs),
        ),
    )


async def _rate(turnstile: MeasuredSystem, sizes: Sizes) -> Section:
    rate = {"starts": RATE_STARTS, "per": RATE_SECONDS}
    await turnstile.system.api.change(action_path(RATED), {"rate": rate})
    count = RATE_STARTS + int(RATE_STARTS * sizes.rated_seconds / RATE_SECONDS)
    before = await turnstile.system.api.newest_id()
    run = await turnstile.run(load((RATED,), count))
    async with database_session(turnstile.deployment.database_url) as session:
        found = await session.fetch(_GRANTED_ATS, RATED, before)
    return rate_section([each["granted_at"] for each in found], run)


def rate_section(granted_ats: Sequence[datetime], run: Run) -> Section:
    """Compare the instants of all grants, in order, with the rate."""
    spans = [
        (later - earlier) / timedelta(seconds=RATE_SECONDS)
        for earlier, later in zip(granted_ats, islice(granted_ats, RATE_STARTS, None), strict=False)
    ]
    # Each start is followed by the one that the window allows next: how long that start was unused.
    column = f"{RATE_STARTS / RATE_SECONDS:,.0f} starts per second"
    return Section(
        title=f"gates: {len(granted_ats):,} no-op executions under a rate",
        columns=(column,),
        rows=(
            Row(
                name="share of the rate that is used",
                cells={column: len(spans) / sum(spans)},
                aims=(Aim(at_least=0.98),),
            ),
            Row(
                name="windows with too many starts",
                cells={column: float(sum(span < 1 for span in spans))},
                aims=(Aim(at_most=0),),
            ),
            *(
                Row(name=f"CPU, {part}", unit="µs per execution", cells={column: run.cpu_us(part)})
                for part in (*run.cpu_seconds, "all")
            ),
        ),
    )


class FilledGate(FilledQueue):
    """A resource of one unit, which a finished attempt holds, and executions that wait there."""

    @classmethod
    async def behind(cls, session: "asyncpg.Connection[asyncpg.Record]", *, depth: int, fair: bool) -> Self:
        """Create an action and a resource of its own with this number of waiting executions."""
        queue_id = await session.fetchval(_CREATE, f"gate{depth}{'fair' if fair else ''}", fair)
        await session.fetch(_REROUTE, queue_id)
        return await cls.filled(session, queue_id, depth=depth)

    async def turn(self) -> float:
        """Settle the held attempt, return the seconds, and let another execution join the queue."""
        seconds = await super().turn()
        await self.grant()
        return seconds


async def _depth(servers: Servers, sizes: Sizes) -> Section:
    async with (
        servers.deployment("gate_depth") as deployment,
        database_session(deployment.database_url) as session,
    ):
        for table in ("execution", "waiting"):
            await session.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        depths = (100, min(_DEPTH_MAX, sizes.depth_max))
        kinds = {
            (depth, fair): (await FilledGate.behind(session, depth=depth, fair=fair)).turn
            for fair in (False, True)
            for depth in depths
        }
        await session.execute("CHECKPOINT")
        seconds = await interleaved_medians(kinds, sizes.turns)
    rows = []
    for fair, order in ((False, "by arrival"), (True, "fair")):
        short, long = (seconds[depth, fair] for depth in depths)
        cells = {f"{depth:,}": 1e6 * seconds[depth, fair] for depth in depths}
        rows.append(Row(name=order, unit="µs", cells=cells))
        rows.append(
            Row(
                name=f"{order}, ratio to the shorter",
                cells={f"{depths[1]:,}": long / short},
                aims=(Aim(at_most=_AIM_DEPTH_RATIO),),
            )
        )
    return Section(
        title="gates: one settle and grant, by the number that waits at the resource",
        columns=tuple(f"{depth:,}" for depth in depths),
        rows=tuple(rows),
        note=f"bulk-loaded, no statistics; medians of {sizes.turns} turns each, interleaved",
    )
