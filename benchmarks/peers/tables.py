"""The results of a comparison as tables: metrics of each load, configurations, guarantees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.contestants import PGQUEUER, TURNSTILE, Contestant, Variant
from benchmarks.peers.history import Run
from benchmarks.peers.job import ACTIONS, LIMIT, TIMED_SECONDS, Group
from benchmarks.peers.session import Counts
from benchmarks.report import Aim, Row, Section, print_section
from benchmarks.report import markdown as markdown_of
from turnstile.stress.check.counts import percentile

_RATE: Final = "jobs/s"
_TAKEN: Final = "taken/s"
_LIMIT: Final = "limit"
_PEAK: Final = "peak concurrency"
_OUT_OF_ORDER: Final = "out of order, %"
_IDEAL_SHARE: Final = "share of the ideal"
_RATIO_AIMS: Final = (1.3, 1.3)
"""Of the rate at limit 4 to that of PgQueuer with one process, and with two."""
_SHARE: Final = "last / before"
_COST: Final = "PostgreSQL, last / before"
_PERCENTS: Final = (50, 90, 99)


@dataclass(slots=True, kw_only=True)
class Entry:
    """One variant of a contestant, and what it has run so far."""

    contestant: Contestant
    variant: Variant
    runs: dict[Group, list[Run]] = field(default_factory=dict)
    slices: list[Sequence[Run]] = field(default_factory=list)
    """For each round: a load without the snapshot, then those under it."""
    failure: str = ""
    """Why it does not run any more."""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return f"{self.contestant.name}, {self.variant.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A whole run."""

    entries: Sequence[Entry]
    counts: Counts
    rounds: int
    circumstances: Mapping[str, str]
    """The date, the versions of the servers, the load average before."""


def sections(comparison: Comparison) -> list[Section]:
    """Return one table for each load."""
    entries, counts, rounds = comparison.entries, comparison.counts, comparison.rounds
    rounds_text = f"{rounds} round{'s' if rounds > 1 else ''}"
    note = f"{rounds_text}, medians"
    found = [
        Section(
            title=f"no limit: {counts.jobs:,} no-op jobs over 10 actions, submitted while they run",
            columns=(_RATE, _TAKEN, _OUT_OF_ORDER),
            rows=_rows(entries, Group.FREE, _free),
            note=f"{note}; taken: how fast the system accepted them; out of order: no fault without a limit",
        ),
        Section(
            title=f"limit {LIMIT} per action, or what the system has: the same {counts.jobs:,} jobs",
            columns=(_RATE, _LIMIT, _PEAK, _OUT_OF_ORDER),
            rows=(*_rows(entries, Group.LIMITED, _limited), *_ratios_to_pgqueuer(entries)),
            note=f"{note}; peak concurrency: of one action, in all rounds; above the limit it was broken",
        ),
        Section(
            title=f"jobs of {1000 * TIMED_SECONDS:g} ms with these limits: {counts.jobs:,} over ten actions",
            columns=(_RATE, _IDEAL_SHARE, _LIMIT, _PEAK),
            rows=_timed_rows(entries),
            note=f"{note}; ideal: every slot always runs a job; the aim: ahead of every other system",
        ),
        Section(
            title=f"one at a time: {counts.handed_over:,} jobs wait, ms from stop to next start",
            columns=("p50", "p90", "p99", "max", _PEAK, _OUT_OF_ORDER),
            rows=_rows(entries, Group.SINGLE, _single),
            note=f"{rounds_text}, all hand-overs together",
        ),
    ]
    found.append(
        Section(
            title=f"a snapshot held open: {counts.slices} times {counts.jobs:,} jobs with limits",
            columns=(
                _SHARE,
                _COST,
                "jobs/s before",
                "jobs/s last",
                "PostgreSQL µs before",
                "PostgreSQL µs last",
            ),
            rows=tuple(
                Row(name=entry.name, cells=_snapshot(entry.slices)) for entry in entries if entry.slices
            ),
            note=f"{note}; before: without the snapshot; µs: CPU of PostgreSQL per job",
        )
    )
    return [section for section in found if section.rows]


def _rows(
    entries: Sequence[Entry], group: Group, cells: Callable[[Entry, Sequence[Run]], Mapping[str, float]]
) -> tuple[Row, ...]:
    ran = [(entry, entry.runs[group]) for entry in entries if entry.runs.get(group)]
    return tuple(Row(name=entry.name, cells=cells(entry, runs)) for entry, runs in ran)


def _free(_: Entry, runs: Sequence[Run]) -> Mapping[str, float]:
    return {
        _RATE: median(run.per_second for run in runs),
        _TAKEN: median(run.jobs / run.submit_seconds for run in runs),
        _OUT_OF_ORDER: _out_of_order(runs),
    }


def _limited(entry: Entry, runs: Sequence[Run]) -> Mapping[str, float]:
    return {
        _RATE: median(run.per_second for run in runs),
        _LIMIT: entry.variant.limited_to,
        _PEAK: max(run.peak_concurrency for run in runs),
        _OUT_OF_ORDER: _out_of_order(runs),
    }


def _rates(entries: Sequence[Entry], group: Group) -> list[tuple[Entry, float]]:
    return [
        (entry, median(run.per_second for run in runs))
        for entry in entries
        if (runs := entry.runs.get(group))
    ]


def _ratios_to_pgqueuer(entries: Sequence[Entry]) -> list[Row]:
    """Return the ratio of this project's rate at the limit to that of PgQueuer, in each of its variants."""
    rates = _rates(entries, Group.LIMITED)
    own = [rate for entry, rate in rates if entry.contestant is TURNSTILE]
    others = [(entry.name, rate) for entry, rate in rates if entry.contestant is PGQUEUER]
    return [
        Row(
            name=f"ratio to {name}",
            cells={_RATE: own[0] / rate},
            aims=(Aim(at_least=at_least, columns=(_RATE,)),),
        )
        for (name, rate), at_least in zip(others if own else (), _RATIO_AIMS, strict=False)
    ]


def _timed_rows(entries: Sequence[Entry]) -> tuple[Row, ...]:
    """Return the rows of the jobs with a duration; this project's has the aim to be ahead of every other."""
    rates = _rates(entries, Group.TIMED)
    best = max((rate for entry, rate in rates if entry.contestant is not TURNSTILE), default=None)
    rows = []
    for entry, rate in rates:
        limit = entry.variant.limited_to
        is_aimed = entry.contestant is TURNSTILE and best is not None
        cells = {
            _RATE: rate,
            _IDEAL_SHARE: rate * TIMED_SECONDS / (ACTIONS * limit),
            _LIMIT: limit,
            _PEAK: max(run.peak_concurrency for run in entry.runs[Group.TIMED]),
        }
        aims = (Aim(at_least=best, columns=(_RATE,)),) if is_aimed else ()
        rows.append(Row(name=entry.name, cells=cells, aims=aims))
    return tuple(rows)


def _single(_: Entry, runs: Sequence[Run]) -> Mapping[str, float]:
    gaps = [gap for run in runs for gap in run.hand_over_ms]
    return {
        **{f"p{percent}": percentile(gaps, percent / 100) or 0.0 for percent in _PERCENTS},
        "max": max(gaps),
        _PEAK: max(run.peak_concurrency for run in runs),
        _OUT_OF_ORDER: _out_of_order(runs),
    }


def _snapshot(rounds: Sequence[Sequence[Run]]) -> Mapping[str, float]:
    rates = [median(of[position].per_second for of in rounds) for position in (0, -1)]
    costs = [median(of[position].postgresql_us for of in rounds) for position in (0, -1)]
    return {
        _SHARE: rates[1] / rates[0],
        **({_COST: costs[1] / costs[0]} if costs[0] else {}),
        "jobs/s before": rates[0],
        "jobs/s last": rates[1],
        "PostgreSQL µs before": costs[0],
        "PostgreSQL µs last": costs[1],
    }


def _out_of_order(runs: Sequence[Run]) -> float:
    return 100 * median(run.out_of_order for run in runs)


def facts(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return a table with the guarantees of each contestant."""
    headings = ("", "versions", "submits", "results", "a job whose worker is killed", "limits it has")
    contestants = {entry.contestant.name: entry.contestant for entry in entries}.values()
    return [
        headings,
        *((c.name, versions(c), c.submits, c.results, c.crash, c.limits) for c in contestants),
    ]


def configurations(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return a table with the configuration and the failure of each variant."""
    return [
        ("", "configuration", "did not run"),
        *((entry.name, entry.variant.configuration, entry.failure.partition("\n")[0]) for entry in entries),
    ]


def versions(contestant: Contestant) -> str:
    """Return the versions of a contestant's packages."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in contestant.packages) or "this checkout"
    except PackageNotFoundError:
        return "not installed"


def print_all(console: Console, comparison: Comparison) -> None:
    """Print all tables."""
    console.print(_circumstances(comparison))
    for section in sections(comparison):
        print_section(console, section)
    for rows in (configurations(comparison.entries), facts(comparison.entries)):
        table = Table(*rows[0], show_lines=True)
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)


def markdown(comparison: Comparison) -> str:
    """Return all tables as Markdown."""
    text = [_circumstances(comparison) + "\n", markdown_of(sections(comparison))]
    for title, rows in (
        ("Configurations", configurations(comparison.entries)),
        ("What each keeps", facts(comparison.entries)),
    ):
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        text.append("\n".join([f"### {title}", "", *lines]) + "\n")
    return "\n".join(text)


def _circumstances(comparison: Comparison) -> str:
    return ", ".join(f"{name} {value}" for name, value in comparison.circumstances.items())
