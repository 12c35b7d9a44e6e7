"""Checks the history of the demo and prints the result: a table of metrics, then PASS or each violation.

In: the submitted tasks and the `History` of the database. Out: a `Report`, and lines on the console. The
rules are those of `check.history`; added are the results of the job, compared with the expected ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.check.history import (
    ExecutionHistory,
    History,
    QueueHistory,
    check_history,
    handover_seconds,
    order_violations,
    peak_concurrency,
    percentile,
)
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding
from turnstile.stress.demo.job import Task

_HEADINGS: Final = (
    "LIMIT",
    "PEAK SLOTS",
    "PEAK RUNNING",
    "OUT OF ORDER",
    "WAIT p50 / p99",
    "HANDOVER p50 / p99",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """The metrics of one queue; the lists hold seconds and may be empty."""

    action_ref: str
    max_concurrent: int | None
    peak_slots: int
    """From grant to end of an attempt."""
    peak_running: int
    """From the claim by a worker to the end of an attempt."""
    out_of_order: int
    waits: list[float]
    handovers: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is printed at the end."""

    queues: tuple[QueueReport, ...]
    submitted: int
    completed: int
    compared: int
    """Results that were compared with the expected ones."""
    elapsed_seconds: float
    """From the first arrival to the last end."""
    violations: tuple[str, ...]
    """One sentence each; empty: every check passed."""


def evaluate(tasks: Sequence[Task], history: History) -> Report:
    """Check the history and compute the metrics."""
    executions = history.executions
    expected = {task.number: task.expected for task in tasks}
    completed = [e for e in executions if e.status is Status.COMPLETED]
    ends = [e.completed_at for e in executions if e.completed_at is not None]
    elapsed = (max(ends) - min(e.created_at for e in executions)).total_seconds() if ends else 0.0
    findings = check_history(history, submitted=len(tasks)).broken
    return Report(
        queues=tuple(_queue_report(queue) for queue in history.queues),
        submitted=len(tasks),
        completed=len(completed),
        compared=sum(e.number in expected for e in completed),
        elapsed_seconds=elapsed,
        violations=(
            *(sentence for finding in findings for sentence in _sentences(finding)),
            *_shortened(list(_wrong_results(expected, executions))),
        ),
    )


def print_report(console: Console, report: Report) -> None:
    """Print the metrics of each queue, then PASS or every violation."""
    rate = report.completed / report.elapsed_seconds if report.elapsed_seconds else 0.0
    console.print()
    console.print(_table(report.queues))
    console.print()
    console.print(
        f"{report.completed} of {report.submitted} executions completed in {report.elapsed_seconds:.1f} s "
        f"({rate:.1f} per second); {report.compared} results compared with the expected values.",
        soft_wrap=True,
    )
    for sentence in report.violations:
        console.print(Text.assemble(("FAIL", "bold red"), " ", sentence), soft_wrap=True)
    if not report.violations:
        limits = " and ".join(f"{queue.max_concurrent} for {queue.action_ref}" for queue in report.queues)
        console.print(
            "[bold green]PASS[/] Every execution completed exactly once. Each queue granted its slots in the "
            f"order of arrival and never exceeded its concurrency limit: {limits}.",
            soft_wrap=True,
        )


def _queue_report(queue: QueueHistory) -> QueueReport:
    return QueueReport(
        action_ref=queue.action_ref,
        max_concurrent=queue.max_concurrent,
        peak_slots=peak_concurrency(queue.slots),
        peak_running=peak_concurrency(queue.runs),
        out_of_order=len(order_violations(queue.attempts)),
        waits=[(a.started_at - a.waiting_since).total_seconds() for a in queue.attempts if a.started_at],
        handovers=handover_seconds(queue),
    )


def _sentences(finding: Finding) -> list[str]:
    return _shortened([f"{finding.rule.value}: {example}" for example in finding.examples], finding.broken)


def _wrong_results(
    expected: Mapping[int, Mapping[str, JsonValue]], executions: Sequence[ExecutionHistory]
) -> Iterator[str]:
    for execution in executions:
        name = f"execution {execution.execution_id} of {execution.action_ref}"
        fields = {} if execution.number is None else expected.get(execution.number, {})
        result = execution.result
        if execution.status in TERMINAL and execution.status is not Status.COMPLETED:
            reason = f": {execution.error_message}" if execution.error_message else ""
            yield f"{name} is {execution.status}{reason}"
        elif execution.status is Status.COMPLETED and not (
            isinstance(result, dict) and fields.items() <= result.items()
        ):
            yield f"the result of {name} is {result}, expected {dict(fields)}"


def _shortened(sentences: list[str], count: int | None = None) -> list[str]:
    more = (len(sentences) if count is None else count) - EXAMPLES_MAX
    return [*sentences[:EXAMPLES_MAX], *([f"... and {more} more"] if more > 0 else [])]


def _table(queues: tuple[QueueReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ACTION", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for queue in queues:
        table.add_row(
            queue.action_ref,
            "none" if queue.max_concurrent is None else str(queue.max_concurrent),
            str(queue.peak_slots),
            str(queue.peak_running),
            str(queue.out_of_order),
            _percentiles(queue.waits),
            _percentiles(queue.handovers),
        )
    return table


def _percentiles(seconds: list[float]) -> str:
    return " / ".join(_duration(percentile(seconds, share)) for share in (0.5, 0.99))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
