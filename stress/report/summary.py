"""Prints the result of a run: its scenarios, gates and recoveries, every violation, and PASS or FAIL."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnstile.stress.check.passages import GATE_RULES
from turnstile.stress.metrics import Recovery
from turnstile.stress.recording import Recording
from turnstile.stress.report.run_report import RunReport, ScenarioReport

WIDTH: Final = 110
"""Of the summary where it does not go to a terminal."""
_NOTHING: Final = "-"
"""Shown for a value that was not measured."""
_SCENARIOS: Final = (
    "SCENARIO",
    "EXECUTIONS",
    "RATE",
    "LIMIT",
    "PEAK\nSLOTS",
    "PEAK\nRUNNING",
    "OUT OF\nORDER",
    "HAND-OVER\np50 / p99",
    "VIOLATIONS",
)
_SCENARIOS_LEGEND: Final = "Peak in one queue: slots by the history, running by the actions' own clocks."
_GATES: Final = ("GATES", "CHECKED", "VIOLATIONS")
_RECOVERIES: Final = ("FAULT", "REPAIRED", "LOST RUNS", "RECLAIMED", "STALL")
_RECOVERIES_LEGEND: Final = (
    "Lost runs: ended by the fault. Reclaimed: all of them had a slot again. "
    "Stall: longest time between two starts."
)


def print_summary(console: Console, report: RunReport) -> None:
    """Print the tables, then every violation, then PASS or FAIL."""
    for table in _tables(report):
        console.print()
        console.print(table)
    console.print()
    # Text from outside is not markup, and is never cut.
    for line in (*_findings(report), _last_line(report)):
        console.print(line, soft_wrap=True, highlight=False)


def _tables(report: RunReport) -> Iterator[Table]:
    if report.scenarios:
        info = report.info
        measured = f"Measured on {info.machine}; {info.installation}; seed {info.seed}"
        yield _table(_SCENARIOS, map(_scenario, report.scenarios), f"{_SCENARIOS_LEGEND}\n{measured}")
    if gates := list(_gates(report.scenarios)):
        yield _table(_GATES, gates)
    if recoveries := [each for scenario in report.scenarios for each in scenario.metrics.recoveries]:
        yield _table(_RECOVERIES, map(_recovery, recoveries), _RECOVERIES_LEGEND)


def _scenario(report: ScenarioReport) -> tuple[str, ...]:
    metrics, handed = report.metrics, report.metrics.hand_over
    return (
        report.scenario.title,
        f"{metrics.ended:,}",
        rate(metrics.executions_per_second),
        _limit(report.recording),
        f"{metrics.peak_slots:,}",
        f"{metrics.peak_runs:,}",
        f"{report.out_of_order:,}",
        _NOTHING if handed is None else f"{_milliseconds(handed.p50_ms)} / {_milliseconds(handed.p99_ms)}",
        f"{report.violations:,}",
    )


def _limit(recording: Recording) -> str:
    """Return the limit of a scenario, as a range where it was changed."""
    every = [recording.scenario.limit, *(change.limit for change in recording.limit_changes)]
    given = sorted({each for each in every if each is not None})
    if not given:
        return "none"
    upper = "none" if None in every else str(given[-1])
    return upper if upper == str(given[0]) else f"{given[0]} to {upper}"


def _gates(reports: Sequence[ScenarioReport]) -> Iterator[tuple[str, ...]]:
    """Yield how often each rule of gates was checked and broken in all scenarios."""
    for rule in GATE_RULES:
        found = [each for report in reports for each in report.verdict.findings if each.rule is rule]
        if checked := sum(each.checked for each in found):
            yield rule.value, f"{checked:,}", f"{sum(each.broken for each in found):,}"
    gates = [report.recording.gates for report in reports]
    if changed := sum(each.changed for each in gates if each is not None):
        yield f"while definitions change: {counted(changed, 'change')}", _NOTHING, _NOTHING


def _recovery(found: Recovery) -> tuple[str, ...]:
    kind = found.kind.value
    return (
        # Unless the kind names its target.
        kind if found.target in kind.split() else f"{kind}: {found.target}",
        _seconds(found.healed_seconds),
        f"{found.lost_runs:,}",
        _seconds(found.reclaim_seconds),
        _seconds(found.stall_seconds),
    )


def _findings(report: RunReport) -> Iterator[Text]:
    for collapse in report.collapses:
        yield Text.assemble(("ERROR", "bold red"), f" {collapse}")
    for scenario in report.scenarios:
        for found in scenario.broken:
            how_often = f"{counted(found.broken, 'violation')} in {found.checked:,}"
            what = f" {scenario.scenario.title}: {found.rule.value}: {how_often}"
            yield Text.assemble(("FAIL", "bold red"), what)
            yield from (Text(f"     {example}") for example in found.examples)


def _last_line(report: RunReport) -> Text:
    result = ("PASS", "bold green") if report.passed else ("FAIL", "bold red")
    if not report.scenarios:
        return Text.assemble(result, " No scenario was completed: nothing was checked")
    checked = (
        f"{counted(report.executions, 'execution')} in {counted(len(report.scenarios), 'scenario')},"
        f" {_seconds(report.seconds)}"
    )
    broken = counted(report.violations, "violation")
    if report.collapses:
        broken += f", {counted(len(report.collapses), 'error')}"
    return Text.assemble(result, f" {'Every check' if report.passed else broken}, over {checked}")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], legend: str = "") -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        caption=Text(legend) if legend else None,
        caption_justify="left",
        caption_style="dim",
        padding=(0, 2, 0, 0),
    )
    for number, heading in enumerate(headings):
        is_value = number > 0
        table.add_column(heading, justify="right" if is_value else "left", overflow="fold", no_wrap=is_value)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def counted(value: int, one: str) -> str:
    """Format a number with a noun."""
    return f"{value:,} {one}" + ("" if value == 1 else "s")


def rate(value: float) -> str:
    """Format a rate per second."""
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def _milliseconds(value: float) -> str:
    """Format a duration with about three digits."""
    if value < 1000:
        return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
    return f"{value / 1000:.2f} s" if value < 10_000 else f"{value / 1000:,.1f} s"


def _seconds(value: float | None) -> str:
    return _NOTHING if value is None else _milliseconds(1000 * value)
