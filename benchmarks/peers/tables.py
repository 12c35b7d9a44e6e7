"""The results of a comparison as tables: one for each load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.peers.history import Run
from benchmarks.peers.job import ACTIONS, LIMIT, TIMED_SECONDS, Group
from benchmarks.peers.variants import Variant
from benchmarks.report import DELAY_COLUMNS, Aim, Row, Section, delay_row

_RATE: Final = "jobs/s"
_TAKEN: Final = "taken/s"
_PEAK: Final = "peak concurrency"
_OUT_OF_ORDER: Final = "out of order, %"
_IDEAL_SHARE: Final = "share of the ideal"
_RATIO_AIMS: Final = {Group.LIMITED: 1.3, Group.TIMED: 1.0}
"""Of this project's rate to that of each other variant."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """A whole run."""

    jobs: int
    """Jobs of the loads over ten actions."""
    handed_over: int
    """Jobs of the load one at a time."""
    rounds: int
    circumstances: Mapping[str, str]
    """The date, the versions of the servers, the load average before."""
    runs: dict[Group, dict[Variant, list[Run]]] = field(
        default_factory=lambda: {group: {} for group in Group}
    )

    def add(self, variant: Variant, group: Group, run: Run) -> None:
        """Add a run of a load."""
        self.runs[group].setdefault(variant, []).append(run)


def sections(comparison: Comparison) -> list[Section]:
    """Return one table for each load."""
    jobs, runs = comparison.jobs, comparison.runs
    rounds = f"{comparison.rounds} round{'s' if comparison.rounds > 1 else ''}"
    return [
        Section(
            title=f"no limit: {jobs:,} no-op jobs over 10 actions, submitted while they run",
            columns=(_RATE, _TAKEN, _OUT_OF_ORDER),
            rows=_rows(runs[Group.FREE], _taken, _out_of_order),
            note=f"{rounds}, medians; taken: how fast the system accepted them; out of order: no fault here",
        ),
        Section(
            title=f"limit {LIMIT} per action: the same {jobs:,} jobs",
            columns=(_RATE, _PEAK, _OUT_OF_ORDER),
            rows=_rows(runs[Group.LIMITED], _peak, _out_of_order) + _ratios(runs, Group.LIMITED),
            note=f"{rounds}, medians; peak concurrency: of one action; above the limit it was broken",
        ),
        Section(
            title=f"jobs of {1000 * TIMED_SECONDS:g} ms with these limits: {jobs:,} over ten actions",
            columns=(_RATE, _IDEAL_SHARE, _PEAK),
            rows=_rows(runs[Group.TIMED], _ideal_share, _peak) + _ratios(runs, Group.TIMED),
            note=f"{rounds}, medians; ideal: every slot always runs a job",
        ),
        Section(
            title=f"one at a time: {comparison.handed_over:,} jobs wait, from stop to next start",
            columns=(*DELAY_COLUMNS, _PEAK, _OUT_OF_ORDER),
            rows=tuple(_delays(variant.name, of) for variant, of in runs[Group.SINGLE].items()),
            note=f"{rounds}, all hand-overs together",
        ),
    ]


Cells = Callable[[Sequence[Run]], Mapping[str, float]]


def _rows(runs: Mapping[Variant, Sequence[Run]], *cells: Cells) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=variant.name,
            cells={_RATE: _rate(of)} | {k: v for each in cells for k, v in each(of).items()},
        )
        for variant, of in runs.items()
    )


def _rate(runs: Sequence[Run]) -> float:
    return median(run.per_second for run in runs)


def _taken(runs: Sequence[Run]) -> Mapping[str, float]:
    return {_TAKEN: median(run.jobs / run.submit_seconds for run in runs)}


def _out_of_order(runs: Sequence[Run]) -> Mapping[str, float]:
    return {_OUT_OF_ORDER: 100 * median(run.out_of_order for run in runs)}


def _peak(runs: Sequence[Run]) -> Mapping[str, float]:
    return {_PEAK: max(run.peak_concurrency for run in runs)}


def _ideal_share(runs: Sequence[Run]) -> Mapping[str, float]:
    return {_IDEAL_SHARE: _rate(runs) * TIMED_SECONDS / (ACTIONS * LIMIT)}


def _delays(name: str, runs: Sequence[Run]) -> Row:
    row = delay_row(name, [gap / 1000 for run in runs for gap in run.hand_over_ms], ())
    return Row(name=name, unit=row.unit, cells={**row.cells, **_peak(runs), **_out_of_order(runs)})


def _ratios(runs: Mapping[Group, Mapping[Variant, Sequence[Run]]], group: Group) -> tuple[Row, ...]:
    """Return the ratio of this project's rate to that of each other variant."""
    own = next((_rate(of) for variant, of in runs[group].items() if variant.is_own), None)
    return tuple(
        Row(
            name=f"ratio to {variant.name}",
            cells={_RATE: own / _rate(of)},
            aims=(Aim(at_least=_RATIO_AIMS[group]),),
        )
        for variant, of in runs[group].items()
        if own is not None and not variant.is_own
    )
