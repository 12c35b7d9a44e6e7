"""Prints the report for people who have never seen the system: figures, then one sentence.

In: a `Report`. Out: lines on the console.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnstile.executor.demo.report import QueueReport, Report


def print_report(console: Console, report: Report) -> None:
    """Print the figures of each queue, then whether the promises were kept."""
    console.print()
    console.print(_table(report.queues))
    console.print()
    console.print(
        f"{report.completed} of {report.submitted} executions completed in {report.elapsed_seconds:.1f} s: "
        f"{report.executions_per_second:.1f} a second; {report.checked} results compared with a recount.",
        soft_wrap=True,
    )
    for sentence in report.broken:
        console.print(Text.assemble(("BROKEN", "bold red"), " ", sentence), soft_wrap=True)
    if not report.broken:
        limits = " and ".join(f"{q.max_concurrent} {q.action_ref}" for q in report.queues)
        console.print(
            "[bold green]KEPT[/] Every execution ran, none was lost; each queue started them in the order in "
            f"which they arrived, never more than {limits} at once.",
            soft_wrap=True,
        )


def _table(queues: tuple[QueueReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ACTION", no_wrap=True)
    headings = ("LIMIT", "MOST HELD", "MOST RUNNING", "OUT OF ORDER", "WAIT p50 / p99", "HAND-OVER p50 / p99")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for queue in queues:
        table.add_row(
            queue.action_ref,
            "none" if queue.max_concurrent is None else str(queue.max_concurrent),
            str(queue.most_held),
            str(queue.most_running),
            str(queue.out_of_order),
            f"{_seconds(queue.wait_p50_seconds)} / {_seconds(queue.wait_p99_seconds)}",
            f"{_seconds(queue.hand_over_p50_seconds)} / {_seconds(queue.hand_over_p99_seconds)}",
        )
    return table


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
