"""One measured run (its duration, CPU time and WAL), and runs of several kinds as rows of a table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from benchmarks.report import Aim, Row

_AIM: Final = 1.1
"""How much a condition may cost: of the rate, and of the CPU per execution."""


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


def rates_of(runs: Runs) -> dict[str, float]:
    """Return the median rate of each kind."""
    return {name: median(run.per_second for run in of) for name, of in runs.items()}


def cpu_us_of(runs: Runs, part: str) -> dict[str, float]:
    """Return the median CPU microseconds per execution of a part, or of all, of each kind."""
    return {name: median(run.cpu_us(part) for run in of) for name, of in runs.items()}


def ratio_rows(
    runs: Runs, reference: str, *, parts: tuple[str, ...] = ("all",), aimed: tuple[str, ...] = ()
) -> list[Row]:
    """Return rate and CPU per execution of each kind, divided by those of the reference.

    `parts`: whose CPU; no row where it is not measured. `aimed`: the columns with an aim; empty: all.
    """
    rows = [
        Row(
            name=f"rate, ratio to {reference}",
            cells=_ratios(rates_of(runs), reference),
            aims=(Aim(at_least=1 / _AIM, columns=aimed),),
        )
    ]
    rows += [
        Row(
            name=f"CPU{'' if part == 'all' else f' of {part}'}, ratio to {reference}",
            cells=_ratios(cpu_us_of(runs, part), reference),
            aims=(Aim(at_most=_AIM, columns=aimed),),
        )
        for part in parts
        if part in ("all", *runs[reference][0].cpu_seconds)
    ]
    return rows


def _ratios(values: Mapping[str, float], reference: str) -> dict[str, float]:
    return {name: value / values[reference] for name, value in values.items() if name != reference}


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
