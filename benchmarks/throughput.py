"""Throughput: no-op executions over ten actions, under a limit, under one that is never reached, without one.

Out: executions per second of each, the CPU time of each process and the WAL per execution.
"""

from typing import Final

from benchmarks.actions import LIMITED, LOOSE, UNLIMITED
from benchmarks.client import load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import WARM_UP_MAX, Run, Runs, measured_system, rates_of, rows_of
from benchmarks.system import Servers, Sizes

_LIMITED: Final = "limit 4"
_LOOSE: Final = "limit 10,000"
_UNLIMITED: Final = "no limit"
_REFS: Final = {_LIMITED: LIMITED, _LOOSE: LOOSE, _UNLIMITED: UNLIMITED}


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run the three loads in turn, for a number of rounds."""
    runs: dict[str, list[Run]] = {name: [] for name in _REFS}
    async with measured_system(servers, "system", deadline_seconds=sizes.deadline_seconds) as turnstile:
        for refs in _REFS.values():
            await turnstile.run(load(refs, min(WARM_UP_MAX, sizes.executions)))
        for _ in range(sizes.rounds):
            for name, refs in _REFS.items():
                runs[name].append(await turnstile.run(load(refs, sizes.executions)))
    return [section_of(runs, count=sizes.executions)]


def section_of(runs: Runs, *, count: int) -> Section:
    """Compare the three loads."""
    rates = rates_of(runs)
    rows = (
        Row(
            name="limit above the demand, share of no limit",
            cells={_LOOSE: rates[_LOOSE] / rates[_UNLIMITED]},
            aims=(Aim(at_least=0.9),),
        ),
        *rows_of(
            runs,
            aims={
                "executions": (
                    Aim(at_least=5500, columns=(_LIMITED,)),
                    Aim(at_least=6000, columns=(_UNLIMITED,)),
                ),
                "CPU, executors": (Aim(at_most=70, columns=(_LIMITED, _UNLIMITED)),),
                "CPU, all": (
                    Aim(at_most=330, columns=(_LIMITED,)),
                    Aim(at_most=320, columns=(_UNLIMITED,)),
                ),
                "WAL": (Aim(at_most=950, columns=(_LIMITED, _UNLIMITED)),),
            },
        ),
    )
    return Section(
        title=f"throughput: {count:,} no-op executions over 10 actions, 1 executor, 2 workers",
        columns=tuple(_REFS),
        rows=rows,
    )
