"""Prints what a run came to: its stages, the five figures, what was broken and what recovered, one last word.

In: a `RunReport`. Out: lines on the console, whole at 100 columns.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnstile.stress.report import wording
from turnstile.stress.report.run_report import RunReport


def print_summary(console: Console, report: RunReport) -> None:
    """Print the tables, then every broken rule, then KEPT or BROKEN."""
    if report.stages:
        for table in _tables(report):
            console.print()
            console.print(table)
    console.print()
    # What comes from outside is no markup, and never cut: what is wrong may stand at its end.
    for line in (*_findings(report), _last_line(report)):
        console.print(line, soft_wrap=True, highlight=False)


def _tables(report: RunReport) -> Iterator[Table]:
    yield _stages(report)
    yield _figures(report)
    cost = wording.cost_rows(report.five)
    if cost:
        yield _filled(wording.COST_HEADINGS, cost)
    if report.five.recoveries:
        rows = [wording.recovery_row(each) for each in report.five.recoveries]
        yield _filled(wording.RECOVERY_HEADINGS, rows, wording.RECOVERY_LEGEND)


def _stages(report: RunReport) -> Table:
    table = _table()
    table.add_column("STAGE", overflow="fold")
    headings = (
        "EXECUTIONS",
        "RATE",
        "LIMIT",
        "HELD",
        "RUNNING",
        "OUT OF\nORDER",
        "HAND-OVER\np50 / p99",
        "BROKEN",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in report.stages:
        figures = stage.figures
        table.add_row(
            Text(stage.stage.title),
            wording.count(figures.ended),
            wording.rate(figures.executions_per_second),
            wording.limit(stage.recording),
            wording.count(figures.most_held),
            wording.count(figures.most_running),
            _in_colour(stage.out_of_order),
            " / ".join(wording.ends(figures.hand_over)),
            _in_colour(stage.violations),
        )
    table.caption = (
        "Held, running: the most at one moment in one queue, by the record and by the runs' own clocks"
    )
    return table


def _figures(report: RunReport) -> Table:
    table = _table()
    table.add_column("FIGURE", overflow="fold")
    table.add_column("MEASURED", overflow="fold")
    for name, said in wording.five_rows(report.five):
        table.add_row(Text(name), Text(said))
    table.caption = Text(f"Measured on {report.machine}; {report.installation}; seed {report.seed}")
    return table


def _findings(report: RunReport) -> Iterator[Text]:
    for collapse in report.collapses:
        yield Text.assemble(("COLLAPSED", "bold red"), f" {collapse}")
    for stage in report.stages:
        for finding in stage.broken:
            yield Text.assemble(("BROKEN", "bold red"), f" {stage.stage.title}: {wording.finding(finding)}")
            yield from (Text(f"         {example}") for example in finding.examples)


def _last_line(report: RunReport) -> Text:
    if not report.stages:
        return Text.assemble((report.word, "bold red"), " No stage came to its end: nothing was checked")
    executions = wording.counted(report.executions, "execution")
    stages = wording.counted(len(report.stages), "stage")
    checked = f"{executions} in {stages}, {wording.seconds(report.seconds)}"
    if report.kept:
        return Text.assemble((report.word, "bold green"), f" Every promise, over {checked}")
    broken = wording.counted(report.violations, "violation")
    if report.collapses:
        broken += f", {wording.counted(len(report.collapses), 'collapse')}"
    return Text.assemble((report.word, "bold red"), f" {broken}, over {checked}")


def _in_colour(value: int) -> Text:
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
