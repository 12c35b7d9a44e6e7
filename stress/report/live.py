"""Shows the progress and the result of each scenario while a run goes on."""

from collections import deque
from typing import Final

from rich.console import Console
from rich.text import Text

from turnstile.stress.report import summary
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import Progress

_LINE_SECONDS: Final = 2.0
_RATE_SECONDS: Final = 3.0


class LiveView:
    """Shows the progress of a run: a line every two seconds, and for each change of the faults."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_seconds = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=1000)
        self._note = ""

    def begin(self, heading: str) -> None:
        """Begin to show a scenario."""
        self._seen.clear()
        self._next_seconds = 0.0
        self._print(Text(heading))

    def show(self, progress: Progress) -> None:
        """Show the progress of a scenario."""
        seconds, per_second = progress.elapsed_seconds, self._per_second(progress)
        if seconds < self._next_seconds and progress.note == self._note:
            return
        self._next_seconds, self._note = seconds + _LINE_SECONDS, progress.note
        note = f"; {progress.note}" if progress.note else ""
        line = (
            f"{seconds:7.1f} s  {progress.sent:,} sent, {progress.waiting:,} waiting, "
            f"{progress.active:,} running, {progress.ended:,} ended, {summary.rate(per_second)}{note}"
        )
        self._print(Text(line))

    def checked(self, report: ScenarioReport) -> None:
        """Show the result of a scenario."""
        metrics = report.metrics
        measured = f"{metrics.ended:,} ended, {summary.rate(metrics.executions_per_second)}"
        broken = "; ".join(f"{finding.rule.value} ({finding.broken:,})" for finding in report.broken)
        mark = ("✗", "bold red") if broken else ("✓", "bold green")
        failed = f"; FAIL: {broken}" if broken else ""
        self._print(Text.assemble(mark, f" {report.scenario.title}: {measured}{failed}"))

    def failed(self, title: str, why: str) -> None:
        """Show that a scenario could not be completed."""
        self._print(Text.assemble(("✗", "bold red"), f" {title}: not completed: {why}"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)

    def _per_second(self, progress: Progress) -> float:
        """Return the ended executions per second, over the last three seconds; 0 before the second value."""
        self._seen.append((progress.elapsed_seconds, progress.ended))
        while len(self._seen) > 2 and progress.elapsed_seconds - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        (first_seconds, first), (last_seconds, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_seconds - first_seconds) if last_seconds > first_seconds else 0.0
