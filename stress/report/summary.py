"""Prints the result of a run: scenarios, metrics, recoveries, every violation, and PASS or FAIL."""

from collections.abc import Iterable, Iterator, Sequence

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
    yield _scenarios(report)
    yield _metrics(report)
    cost = wording.cost_rows(report.metrics)
    if cost:
        yield _filled(wording.COST_HEADINGS, cost)
    if report.metrics.recoveries:
        rows = [wording.recovery_row(each) for each in report.metrics.recoveries]
        yield _filled(wording.RECOVERY_HEADINGS, rows, wording.RECOVERY_LEGEND)


def _scenarios(report: RunReport) -> Table:
    table = _table()
    table.add_column("SCENARIO", overflow="fold")
    headings = (
        "EXECUTIONS",
        "RATE",
        "LIMIT",
        "PEAK\nSLOTS",
        "PEAK\nRUNNING",
        "OUT OF\nORDER",
        "HANDOVER\np50 / p99",
        "FAILED",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for scenario in report.scenarios:
        metrics = scenario.metrics
        table.add_row(
            Text(scenario.scenario.title),
            wording.count(metrics.ended),
            wording.rate(metrics.executions_per_second),
            wording.limit(scenario.recording),
            wording.count(metrics.peak_slots),
            wording.count(metrics.peak_runs),
            _coloured(scenario.out_of_order),
            " / ".join(wording.p50_p99(metrics.hand_over)),
            _coloured(scenario.violations),
        )
    table.caption = "Peak in one queue: slots by the history, running by the actions' own clocks"
    return table


def _metrics(report: RunReport) -> Table:
    table = _table()
    table.add_column("METRIC", overflow="fold")
    table.add_column("VALUE", overflow="fold")
    for name, value in wording.metric_rows(report.metrics):
        table.add_row(Text(name), Text(value))
    table.caption = Text(
        f"Measured on {report.info.machine}; {report.info.installation}; seed {report.info.seed}"
    )
    return table


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


def _coloured(value: int) -> Text:
    return Text(f"{value:,}", style="bold red" if value else "green")


def _filled(headings: Sequence[str], rows: Iterable[Sequence[str]], legend: str | None = None) -> Table:
    table = _table()
    table.caption = legend
    for number, heading in enumerate(headings):
        table.add_column(heading.upper(), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _table() -> Table:
    return Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        caption_justify="left",
        caption_style="dim",
        padding=(0, 2, 0, 0),
    )
