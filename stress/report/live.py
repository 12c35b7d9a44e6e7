"""Shows the progress and the result of each scenario while a run goes on."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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


@contextmanager
def live_view(console: Console) -> Iterator["LiveView"]:
    """Yield a view: at the bottom of a terminal until it ends, as a line every two seconds elsewhere."""
    if not console.is_terminal:
        yield LiveView(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveView(console, live)


class LiveView:
    """Shows the progress of a run; `live` is None without a terminal."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next_seconds = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=1000)
        self._heading = ""
        self._note = ""

    def begin(self, heading: str) -> None:
        """Begin to show a scenario."""
        self._heading = heading
        self._seen.clear()
        self._next_seconds = 0.0
        if self._live is None:
            self._print(Text(heading))

    def show(self, progress: Progress) -> None:
        """Show the progress of a scenario; a change of the faults at once."""
        rate = wording.rate(self._per_second(progress))
        seconds, note = progress.elapsed_seconds, f"; {progress.note}" if progress.note else ""
        if self._live is not None:
            self._live.update(_live_table(self._heading, progress, rate), refresh=True)
        elif seconds >= self._next_seconds or progress.note != self._note:
            self._next_seconds = seconds + _LINE_SECONDS
            line = (
                f"{seconds:7.1f} s  {progress.sent:,} sent, {progress.waiting:,} waiting, "
                f"{progress.active:,} running, {progress.ended:,} ended, {rate}{note}"
            )
            self._print(Text(line))
        self._note = progress.note

    def checking(self, title: str) -> None:
        """Show that a scenario is being checked, which may take a while."""
        self._replace(Text(f"Checking {title}", style="dim"))

    def checked(self, report: ScenarioReport) -> None:
        """Show the result of a scenario permanently."""
        self._print(_result(report))

    def failed(self, title: str, why: str) -> None:
        """Show permanently that a scenario could not be completed."""
        self._print(Text.assemble(("✗", "bold red"), f" {title}: not completed: {why}"))

    def _replace(self, text: Text) -> None:
        """Show a text in place of the progress, on a terminal only."""
        if self._live is not None:
            self._live.update(text, refresh=True)

    def _print(self, text: Text) -> None:
        """Print a line permanently."""
        self._replace(Text())
        self._console.print(text, soft_wrap=True, highlight=False)

    def _per_second(self, progress: Progress) -> float:
        """Return the ended executions per second, over the last three seconds; 0 before the second value."""
        self._seen.append((progress.elapsed_seconds, progress.ended))
        while len(self._seen) > 2 and progress.elapsed_seconds - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        (first_seconds, first), (last_seconds, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_seconds - first_seconds) if last_seconds > first_seconds else 0.0


def _live_table(heading: str, progress: Progress, rate: str) -> Group:
    total = max(progress.scenario.load.executions, 1)
    bars = Table.grid(padding=(0, 2))
    for name, count in (("sent", progress.sent), ("ended", progress.ended)):
        bar = ProgressBar(total=total, completed=count, width=_BAR_WIDTH)
        bars.add_row(name, bar, f"{count:,} of {total:,}")
    now = Text.assemble(
        (f"{progress.waiting:,}", "bold"),
        " waiting   ",
        (f"{progress.active:,}", "bold green"),
        " running   ",
        (rate, "bold"),
        " ended   ",
        (progress.note, "bold red"),
    )
    return Group(Text(f"{heading}   {progress.elapsed_seconds:.1f} s", style="bold"), bars, now)


def _result(report: ScenarioReport) -> Text:
    metrics = report.metrics
    measured = f"{metrics.ended:,} ended, {wording.rate(metrics.executions_per_second)}"
    if metrics.hand_over is not None:
        measured += f", hand-over p50 {wording.duration(metrics.hand_over.p50_ms)}"
    if not report.broken:
        return Text.assemble(("✓", "bold green"), f" {report.scenario.title}: {measured}")
    broken = "; ".join(f"{finding.rule.value} ({finding.broken:,})" for finding in report.broken)
    return Text.assemble(("✗", "bold red"), f" {report.scenario.title}: {measured}; FAIL: {broken}")
