"""Shows a run while it goes on: a live table on a terminal, a line every two seconds elsewhere."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnstile.stress.report import wording
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import Progress

_LINE_SECONDS: Final = 2.0
_RATE_SECONDS: Final = 3.0
_BAR_WIDTH: Final = 40


class LiveView(Protocol):
    """Shows the progress of a run."""

    def show(self, progress: Progress) -> None:
        """Show the progress of a scenario."""
        ...

    def checking(self, title: str) -> None:
        """Show that a scenario is being checked, which may take a while."""
        ...

    def checked(self, report: ScenarioReport) -> None:
        """Show the result of a scenario permanently."""
        ...

    def failed(self, title: str, why: str) -> None:
        """Show permanently that a scenario could not be completed."""
        ...


@contextmanager
def live_view(console: Console) -> Iterator[LiveView]:
    """Yield a view: live on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _LiveTable(live)


class _Lines:
    """One line every two seconds, and where the faults change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rate = _Rate()
        self._scenario = ""
        self._next_seconds = 0.0
        self._note = ""

    def show(self, progress: Progress) -> None:
        self._rate.update(progress)
        if progress.scenario.name != self._scenario:
            self._scenario = progress.scenario.name
            self._next_seconds = 0.0
            self._print(Text(_heading(progress)))
        elif progress.elapsed_seconds < self._next_seconds and progress.note == self._note:
            return
        self._next_seconds = progress.elapsed_seconds + _LINE_SECONDS
        self._note = progress.note
        note = f"; {progress.note}" if progress.note else ""
        rate = wording.rate(self._rate.per_second)
        line = (
            f"{progress.elapsed_seconds:7.1f} s  {progress.sent:,} sent, {progress.waiting:,} waiting, "
            f"{progress.active:,} running, {progress.ended:,} ended, {rate}{note}"
        )
        self._print(Text(line))

    def checking(self, title: str) -> None:
        """Show nothing: the next line is the result."""

    def checked(self, report: ScenarioReport) -> None:
        self._print(_result(report))

    def failed(self, title: str, why: str) -> None:
        self._print(_failure(title, why))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class _LiveTable:
    """The current scenario at the bottom of the terminal, above it one line for each completed scenario."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rate = _Rate()

    def show(self, progress: Progress) -> None:
        self._rate.update(progress)
        self._live.update(_live_table(progress, self._rate.per_second), refresh=True)

    def checking(self, title: str) -> None:
        self._live.update(Text(f"Checking {title}", style="dim"), refresh=True)

    def checked(self, report: ScenarioReport) -> None:
        self._print(_result(report))

    def failed(self, title: str, why: str) -> None:
        self._print(_failure(title, why))

    def _print(self, text: Text) -> None:
        self._live.update(Text(), refresh=True)
        self._live.console.print(text, soft_wrap=True, highlight=False)


class _Rate:
    """Ended executions per second, over the last three seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=1000)
        self._scenario = ""

    def update(self, progress: Progress) -> None:
        """Add a value."""
        if progress.scenario.name != self._scenario:
            self._scenario = progress.scenario.name
            self._seen.clear()
        self._seen.append((progress.elapsed_seconds, progress.ended))
        while len(self._seen) > 2 and progress.elapsed_seconds - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 before the second value."""
        if not self._seen:
            return 0.0
        (first_seconds, first), (last_seconds, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_seconds - first_seconds) if last_seconds > first_seconds else 0.0


def _live_table(progress: Progress, per_second: float) -> Group:
    total = max(progress.scenario.load.executions, 1)
    bars = Table.grid(padding=(0, 2))
    bars.add_row(
        "sent", ProgressBar(total=total, completed=progress.sent, width=_BAR_WIDTH), _of(progress.sent, total)
    )
    bars.add_row(
        "ended",
        ProgressBar(total=total, completed=progress.ended, width=_BAR_WIDTH),
        _of(progress.ended, total),
    )
    now = Text.assemble(
        (f"{progress.waiting:,}", "bold"),
        " waiting   ",
        (f"{progress.active:,}", "bold green"),
        " running   ",
        (wording.rate(per_second), "bold"),
        " ended   ",
        (progress.note, "bold red"),
    )
    heading = Text(f"{_heading(progress)}   {progress.elapsed_seconds:.1f} s", style="bold")
    return Group(heading, bars, now)


def _heading(progress: Progress) -> str:
    return f"Scenario {progress.number} of {progress.scenarios}: {progress.scenario.title}"


def _of(count: int, total: int) -> str:
    return f"{count:,} of {total:,}"


def _result(report: ScenarioReport) -> Text:
    metrics = report.metrics
    measured = f"{metrics.ended:,} ended, {wording.rate(metrics.executions_per_second)}"
    if metrics.hand_over is not None:
        measured += f", handover p50 {wording.duration(metrics.hand_over.p50_ms)}"
    if not report.broken:
        return Text.assemble(("✓", "bold green"), f" {report.scenario.title}: {measured}")
    broken = "; ".join(f"{finding.rule.value} ({finding.broken:,})" for finding in report.broken)
    return Text.assemble(("✗", "bold red"), f" {report.scenario.title}: {measured}; FAIL: {broken}")


def _failure(title: str, why: str) -> Text:
    return Text.assemble(("✗", "bold red"), f" {title}: not completed: {why}")
