"""Replicas: the same load with one, two and four executors, each with two workers.

Out: rate and CPU per execution as ratios to one executor, at limit 4 and without a limit.
"""

from typing import Final

from benchmarks.actions import LIMITED, UNLIMITED
from benchmarks.client import load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import (
    WARM_UP_MAX,
    Run,
    Runs,
    cpu_us_of,
    measured_system,
    rates_of,
    ratios,
    rows_of,
)
from benchmarks.system import Servers, Sizes

_LOADS: Final = {"limit 4": LIMITED, "no limit": UNLIMITED}
_AIM_RATE: Final = 0.95
_AIM_COST: Final = 1.2


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run both loads in turn, with each number of executors on a system of its own."""
    found: dict[str, dict[str, list[Run]]] = {
        name: {column(number): [] for number in sizes.executors} for name in _LOADS
    }
    for number in sizes.executors:
        async with measured_system(
            servers, "replicas", executors=number, deadline_seconds=sizes.deadline_seconds
        ) as turnstile:
            for refs in _LOADS.values():
                await turnstile.run(load(refs, min(WARM_UP_MAX, sizes.replicated)))
            for _ in range(sizes.rounds):
                for name, refs in _LOADS.items():
                    found[name][column(number)].append(await turnstile.run(load(refs, sizes.replicated)))
    return [section_of(name, runs, count=sizes.replicated) for name, runs in found.items()]


def column(executors: int) -> str:
    """Return the name of a column."""
    return f"{executors} executor{'s' if executors > 1 else ''}"


def section_of(name: str, runs: Runs, *, count: int) -> Section:
    """Compare each number of executors with the first."""
    columns = tuple(runs)
    return Section(
        title=f"replicas, {name}: {count:,} no-op executions over 10 actions, 2 workers",
        columns=columns,
        rows=(
            Row(
                name=f"rate, ratio to {columns[0]}",
                unit="",
                cells=ratios(rates_of(runs), columns[0]),
                aims=(Aim(at_least=_AIM_RATE),),
            ),
            Row(
                name=f"CPU, ratio to {columns[0]}",
                unit="",
                cells=ratios(cpu_us_of(runs, "all"), columns[0]),
                aims=(Aim(at_most=_AIM_COST),),
            ),
            *rows_of(runs),
        ),
    )
