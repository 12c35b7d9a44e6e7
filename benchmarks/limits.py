"""How far limits are used: the slots of a worker by short jobs, and a rate of starts.

Out: in what share of the time each worker slot runs a job while others wait; the share of a rate that is
used, and whether it was ever exceeded.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from statistics import median
from typing import Final

from benchmarks.actions import MEASURED, RATE_SECONDS, RATE_STARTS, RATED
from benchmarks.client import load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import Run
from benchmarks.system import Servers, Sizes, running_system
from turnstile.stress.installation import action_path

_WORKER_SLOTS: Final = dict(zip(MEASURED, (1, 4), strict=True))
"""So many that the processors could start several times as much."""
_AIMS_BUSY: Final = dict(zip(MEASURED, (0.95, 0.98), strict=True))
_BUSY: Final = """
SELECT count(*) AS jobs, sum((e.result #>> '{}')::double precision) AS seconds,
       extract(epoch FROM max(e.completed_at) - min(e.started_at))::double precision AS elapsed
FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2
"""
_STARTS: Final = """
SELECT e.scheduled_at FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2 ORDER BY e.scheduled_at
"""


async def worker_slots(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run jobs without a limit on one worker, of each duration in turn."""
    count = sizes.share(10)
    busy: dict[str, list[tuple[float, float]]] = {ref: [] for ref in MEASURED}
    for ref, found in busy.items():
        for _ in range(sizes.rounds):
            found.append(await _busy(servers, sizes, ref, count))
    return [_busy_section(busy, count=count)]


async def _busy(servers: Servers, sizes: Sizes, ref: str, count: int) -> tuple[float, float]:
    """Return in what share of the time the slots of one worker ran a job, and the seconds of a job."""
    slots = _WORKER_SLOTS[ref]
    async with running_system(servers, "busy", sizes, workers=1, concurrency=slots) as system:
        await system.warm_up([ref], count)
        before = await system.api.newest_id()
        await system.run(load([ref], count))
        found = await system.session.fetchrow(_BUSY, ref, before)
    assert found is not None
    return found["seconds"] / (slots * found["elapsed"]), found["seconds"] / found["jobs"]


def _busy_section(busy: Mapping[str, list[tuple[float, float]]], *, count: int) -> Section:
    names = {ref: f"{_WORKER_SLOTS[ref]} at {1000 * MEASURED[ref]:g} ms" for ref in busy}
    shares = {names[ref]: median(share for share, _ in runs) for ref, runs in busy.items()}
    jobs = {names[ref]: 1000 * median(seconds for _, seconds in runs) for ref, runs in busy.items()}
    between = {name: jobs[name] * (1 / share - 1) for name, share in shares.items()}
    return Section(
        title=f"limit-bound, worker slots: {count:,} jobs without a limit, 1 executor, 1 worker",
        columns=tuple(shares),
        rows=(
            Row(
                name="share of the ideal",
                cells=shares,
                aims=tuple(Aim(at_least=_AIMS_BUSY[ref], columns=(names[ref],)) for ref in busy),
            ),
            Row(name="a job", unit="ms", cells=jobs),
            Row(name="between two jobs of a worker slot", unit="ms", cells=between),
        ),
        note="ideal: each worker slot always runs a job",
    )


async def rate(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run no-op executions of an action under a rate."""
    async with running_system(servers, "rate", sizes) as system:
        await system.api.change(action_path(RATED), {"rate": {"starts": RATE_STARTS, "per": RATE_SECONDS}})
        before = await system.api.newest_id()
        run = await system.run(load((RATED,), RATE_STARTS + sizes.executions))
        found = await system.session.fetch(_STARTS, RATED, before)
    return [rate_section([each["scheduled_at"] for each in found], run)]


def rate_section(granted_ats: Sequence[datetime], run: Run) -> Section:
    """Compare the instants of all grants, in order, with the rate."""
    # Each start is followed by the one that the window allows next: how long that start was unused.
    spans = [
        (later - earlier) / timedelta(seconds=RATE_SECONDS)
        for earlier, later in zip(granted_ats, islice(granted_ats, RATE_STARTS, None), strict=False)
    ]
    column = f"{RATE_STARTS / RATE_SECONDS:,.0f} starts per second"
    values = (
        ("share of the rate that is used", "", len(spans) / sum(spans), Aim(at_least=0.98)),
        ("windows with too many starts", "", float(sum(span < 1 for span in spans)), Aim(at_most=0)),
        ("CPU, all", "µs per execution", run.cpu_us("all"), None),
    )
    return Section(
        title=f"gates: {len(granted_ats):,} no-op executions under a rate",
        columns=(column,),
        rows=tuple(
            Row(name=name, unit=unit, cells={column: value}, aims=(aim,) if aim else ())
            for name, unit, value, aim in values
        ),
    )
