"""Replicas: the same load with one, two and four executors, each with two workers.

Out: rate and CPU per execution as ratios to one executor, at limit 4 and without a limit.
"""

from typing import Final

from benchmarks.actions import LIMITED, UNLIMITED
from benchmarks.client import load
from benchmarks.report import Section
from benchmarks.run import WARM_UP_MAX, Run, Runs, measured_system, ratio_rows, rows_of
from benchmarks.system import Servers, Sizes

_LOADS: Final = {"limit 4": LIMITED, "no limit": UNLIMITED}


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
        rows=(*ratio_rows(runs, columns[0]), *rows_of(runs)),
    )
