"""Limit-bound: jobs of 20 ms, so that the limits and not the processors bound the rate.

Out: the share of the ideal rate (each slot always runs a job), and the time between two jobs of a slot. Then
the same where the worker slots bound the rate: for how much of the time they run a job while others wait.
"""

from collections.abc import Mapping
from statistics import median
from typing import Final

from benchmarks.actions import JOB_SECONDS, LIMIT, MEASURED, TIMED
from benchmarks.client import database_session, load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import WARM_UP_MAX, Runs, measured_system, rates_of, rows_of
from benchmarks.system import Servers, Sizes

_COLUMN: Final = "limit 4"
_SLOTS: Final = len(TIMED) * LIMIT
_IDEAL: Final = _SLOTS / JOB_SECONDS
_AIM_SHARE: Final = 0.93
_WORKER_SLOTS: Final = dict(zip(MEASURED, (1, 4), strict=True))
"""So many that the processors could start several times as much."""
_AIMS_BUSY: Final = dict(zip(MEASURED, (0.95, 0.98), strict=True))
_BUSY: Final = """
SELECT count(*) AS jobs, sum((e.result #>> '{}')::double precision) AS seconds,
       extract(epoch FROM max(e.completed_at) - min(e.started_at))::double precision AS elapsed
FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2
"""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run the jobs over ten actions for a number of rounds, then those without a limit."""
    async with measured_system(servers, "bound", deadline_seconds=sizes.deadline_seconds) as turnstile:
        await turnstile.run(load(TIMED, min(WARM_UP_MAX, sizes.jobs)))
        runs = [await turnstile.run(load(TIMED, sizes.jobs)) for _ in range(sizes.rounds)]
    count = max(sizes.jobs // 4, 10)
    busy = {
        ref: [
            await _busy(servers, ref, count, deadline_seconds=sizes.deadline_seconds)
            for _ in range(sizes.rounds)
        ]
        for ref in MEASURED
    }
    return [section_of({_COLUMN: runs}, count=sizes.jobs), busy_section(busy, count=count)]


async def _busy(servers: Servers, ref: str, count: int, *, deadline_seconds: float) -> tuple[float, float]:
    """Run jobs on one worker; return in what share of the time its slots ran one, and the seconds of one."""
    async with (
        measured_system(
            servers,
            "busy",
            deadline_seconds=deadline_seconds,
            workers=1,
            concurrency=_WORKER_SLOTS[ref],
        ) as turnstile,
        database_session(turnstile.deployment.database_url) as session,
    ):
        await turnstile.run(load([ref], min(WARM_UP_MAX, count)))
        before = await turnstile.system.api.newest_id()
        await turnstile.run(load([ref], count))
        found = await session.fetchrow(_BUSY, ref, before)
    assert found is not None
    return found["seconds"] / (_WORKER_SLOTS[ref] * found["elapsed"]), found["seconds"] / found["jobs"]


def section_of(runs: Runs, *, count: int) -> Section:
    """Compare the rate with the ideal."""
    rates = rates_of(runs)
    between = {name: 1000 * (_SLOTS / rate - JOB_SECONDS) for name, rate in rates.items()}
    return Section(
        title=f"limit-bound: {count:,} jobs of 20 ms over 10 actions, 1 executor, 2 workers",
        columns=tuple(runs),
        rows=(
            Row(
                name="share of the ideal",
                cells={name: rate / _IDEAL for name, rate in rates.items()},
                aims=(Aim(at_least=_AIM_SHARE),),
            ),
            Row(name="between two jobs of a slot", unit="ms", cells=between),
            *rows_of(runs),
        ),
        note=f"ideal: {_SLOTS} slots that always run a job, {_IDEAL:,.0f}/s",
    )


def busy_section(busy: Mapping[str, list[tuple[float, float]]], *, count: int) -> Section:
    """Compare the time in which worker slots ran a job with the whole time."""
    names = {ref: f"{_WORKER_SLOTS[ref]} at {1000 * MEASURED[ref]:g} ms" for ref in busy}
    shares = {names[ref]: median(share for share, _ in runs) for ref, runs in busy.items()}
    jobs = {names[ref]: 1000 * median(seconds for _, seconds in runs) for ref, runs in busy.items()}
    return Section(
        title=f"worker slots: {count:,} jobs without a limit, 1 executor, 1 worker",
        columns=tuple(shares),
        rows=(
            Row(
                name="share of the ideal",
                cells=shares,
                aims=tuple(Aim(at_least=_AIMS_BUSY[ref], columns=(names[ref],)) for ref in busy),
            ),
            Row(name="a job", unit="ms", cells=jobs),
            Row(
                name="between two jobs of a worker slot",
                unit="ms",
                cells={name: jobs[name] * (1 / share - 1) for name, share in shares.items()},
            ),
        ),
        note="ideal: each worker slot always runs a job",
    )
