"""Prints the result of a run: scenarios, metrics, recoveries, every violation, and PASS or FAIL."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnstile.stress.report import wording
from turnstile.stress.report.run_report import RunReport


def print_summary(console: Console, report: RunReport) -> None:
    """Print the tables, then every violation, then PASS or FAIL."""
    if report.scenarios:
        for table in _tables(report):
            console.print()
            console.print(table)
    console.print()
    # Text from outside is not markup, and is never cut.
    for line in (*_findings(report), _last_line(report)):
        console.print(line, soft_wrap=True, highlight=False)


def _tables(report: RunReport) -> Iterator[Table]:
    rows = wording.scenario_rows(report.scenarios)
    yield _table(wording.SCENARIO_HEADINGS, rows, wording.SCENARIO_LEGEND)
    measured = f"Measured on {report.info.machine}; {report.info.installation}; seed {report.info.seed}"
    yield _table(("Metric", "Value"), wording.metric_rows(report.metrics), measured, values="left")
    if gates := wording.gate_rows(report.scenarios):
        yield _table(wording.GATE_HEADINGS, gates)
    if cost := wording.cost_rows(report.metrics):
        yield _table(wording.COST_HEADINGS, cost)
    if rows := wording.recovery_rows(report.metrics):
        yield _table(wording.RECOVERY_HEADINGS, rows, wording.RECOVERY_LEGEND)


def _findings(report: RunReport) -> Iterator[Text]:
    for collapse in report.collapses:
        yield Text.assemble(("ERROR", "bold red"), f" {collapse}")
    for scenario in report.scenarios:
        for finding in scenario.broken:
            yield Text.assemble(
                ("FAIL", "bold red"), f" {scenario.scenario.title}: {wording.finding(finding)}"
            )
            yield from (Text(f"     {example}") for example in finding.examples)


def _last_line(report: RunReport) -> Text:
    if not report.scenarios:
        return Text.assemble((report.result, "bold red"), " No scenario was completed: nothing was checked")
    executions = wording.counted(report.executions, "execution")
    scenarios = wording.counted(len(report.scenarios), "scenario")
    checked = f"{executions} in {scenarios}, {wording.seconds(report.seconds)}"
    if report.passed:
        return Text.assemble((report.result, "bold green"), f" Every check, over {checked}")
    broken = wording.counted(report.violations, "violation")
    if report.collapses:
        broken += f", {wording.counted(len(report.collapses), 'error')}"
    return Text.assemble((report.result, "bold red"), f" {broken}, over {checked}")


def _table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    legend: str = "",
    *,
    values: Literal["left", "right"] = "right",
) -> Table:
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
        table.add_column(
            heading.upper().replace("P50 / P99", "p50 / p99"),
            justify=values if is_value else "left",
            overflow="fold",
            no_wrap=is_value and values == "right",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
