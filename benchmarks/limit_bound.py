"""Limit-bound: jobs of 20 ms, so that the limits and not the processors bound the rate.

Out: the share of the ideal rate (each slot always runs a job), and the time between two jobs of a slot.
"""

from typing import Final

from benchmarks.actions import JOB_SECONDS, LIMIT, TIMED
from benchmarks.client import load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import WARM_UP_MAX, Runs, measured_system, rates_of, rows_of
from benchmarks.system import Servers, Sizes

_COLUMN: Final = "limit 4"
_SLOTS: Final = len(TIMED) * LIMIT
_IDEAL: Final = _SLOTS / JOB_SECONDS
_AIM_SHARE: Final = 0.92


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run the jobs over ten actions for a number of rounds."""
    async with measured_system(servers, "bound", deadline_seconds=sizes.deadline_seconds) as turnstile:
        await turnstile.run(load(TIMED, min(WARM_UP_MAX, sizes.jobs)))
        runs = [await turnstile.run(load(TIMED, sizes.jobs)) for _ in range(sizes.rounds)]
    return [section_of({_COLUMN: runs}, count=sizes.jobs)]


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
                unit="",
                cells={name: rate / _IDEAL for name, rate in rates.items()},
                aims=(Aim(at_least=_AIM_SHARE),),
            ),
            Row(name="between two jobs of a slot", unit="ms", cells=between),
            *rows_of(runs),
        ),
        note=f"ideal: {_SLOTS} slots that always run a job, {_IDEAL:,.0f}/s",
    )
