"""Gates: what limits cost that executions of several queues share, compared with the same load without them.

Out: rates with a shared resource and with a fair total, as ratios to the load without; how far a rate is
used, and whether it was ever exceeded.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

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

_STARTS: Final = """
SELECT e.scheduled_at FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2 ORDER BY e.scheduled_at
"""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Measure shared limits, then a rate."""
    async with measured_system(servers, "gates", deadline_seconds=sizes.deadline_seconds) as turnstile:
        return [await _shared(turnstile, sizes), await _rate(turnstile, sizes)]


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
            *rows_of(
                runs,
                # 2.2 times the rate of the core before.
                aims={
                    "executions": (
                        Aim(at_least=2.2 * 930, columns=(_SHARED,)),
                        Aim(at_least=2.2 * 1056, columns=(_TOTALED,)),
                    )
                },
            ),
        ),
    )


async def _rate(turnstile: MeasuredSystem, sizes: Sizes) -> Section:
    rate = {"starts": RATE_STARTS, "per": RATE_SECONDS}
    await turnstile.system.api.change(action_path(RATED), {"rate": rate})
    count = RATE_STARTS + int(RATE_STARTS * sizes.rated_seconds / RATE_SECONDS)
    before = await turnstile.system.api.newest_id()
    run = await turnstile.run(load((RATED,), count))
    async with database_session(turnstile.deployment.database_url) as session:
        found = await session.fetch(_STARTS, RATED, before)
    return rate_section([each["scheduled_at"] for each in found], run)


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
