"""What a run came to, as tables: figures of each load, then who each was and what it keeps.

In: the runs of each contestant's variants. Out: `Section`s for `benchmarks.report`, and rows of text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.measures import Row, Section, percentile
from benchmarks.peers.history import Run
from benchmarks.peers.loads import LIMIT, Group
from benchmarks.peers.session import Counts
from benchmarks.peers.variants import Contestant, Variant
from benchmarks.report import markdown as markdown_of
from benchmarks.report import print_section

_RATE: Final = "jobs/s"
_TAKEN: Final = "taken/s"
_LIMIT: Final = "limit"
_MOST: Final = "most at once"
_OUT_OF_ORDER: Final = "out of order, %"
_PERCENTS: Final = (50, 90, 99)


@dataclass(slots=True, kw_only=True)
class Entry:
    """One variant of a contestant, and what it has run so far."""

    contestant: Contestant
    variant: Variant
    runs: dict[Group, list[Run]] = field(default_factory=dict)
    failure: str = ""
    """Why it runs no more."""

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
    """The date, the servers' versions, how busy the machine was before."""


def sections(comparison: Comparison) -> list[Section]:
    """Return one table for each load."""
    entries, counts, rounds = comparison.entries, comparison.counts, comparison.rounds
    said = f"{rounds} round{'s' if rounds > 1 else ''}"
    note = f"{said}, medians"
    found = [
        Section(
            title=f"no limit: {counts.jobs:,} no-op jobs over 10 actions, submitted while they run",
            columns=(_RATE, _TAKEN, _OUT_OF_ORDER),
            rows=_rows(entries, Group.FREE, _free),
            note=f"{note}; taken: how fast the system took them; out of order: no fault without a limit",
        ),
        Section(
            title=f"limit {LIMIT} per action, or what the system has: the same {counts.jobs:,} jobs",
            columns=(_RATE, _LIMIT, _MOST, _OUT_OF_ORDER),
            rows=_rows(entries, Group.LIMITED, _limited),
            note=f"{note}; most at once: of one action, in all rounds; above the limit it was broken",
        ),
        Section(
            title=f"one at a time: {counts.handed_over:,} jobs wait, ms from stop to next start",
            columns=("p50", "p90", "p99", "max", _MOST, _OUT_OF_ORDER),
            rows=_rows(entries, Group.SINGLE, _single),
            note=f"{said}, all hand-overs together",
        ),
    ]
    return [section for section in found if section.rows]


def _rows(
    entries: Sequence[Entry], group: Group, cells: Callable[[Entry, Sequence[Run]], Mapping[str, float]]
) -> tuple[Row, ...]:
    ran = [(entry, entry.runs[group]) for entry in entries if entry.runs.get(group)]
    return tuple(Row(name=entry.name, unit="", cells=cells(entry, runs)) for entry, runs in ran)


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
        _MOST: max(run.most_at_once for run in runs),
        _OUT_OF_ORDER: _out_of_order(runs),
    }


def _single(_: Entry, runs: Sequence[Run]) -> Mapping[str, float]:
    gaps = [gap for run in runs for gap in run.hand_over_ms]
    return {
        **{f"p{percent}": percentile(gaps, percent) for percent in _PERCENTS},
        "max": max(gaps),
        _MOST: max(run.most_at_once for run in runs),
        _OUT_OF_ORDER: _out_of_order(runs),
    }


def _out_of_order(runs: Sequence[Run]) -> float:
    return 100 * median(run.out_of_order for run in runs)


def facts(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return, under headings, who each contestant was and what it keeps."""
    headings = ("", "versions", "submits", "results", "a job whose worker is killed", "limits it has")
    contestants = {entry.contestant.name: entry.contestant for entry in entries}.values()
    return [
        headings,
        *((c.name, versions(c), c.submits, c.results, c.crash, c.limits) for c in contestants),
    ]


def configurations(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return, under headings, how each variant was configured, and what became of those that failed."""
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
