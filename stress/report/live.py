"""Shows a run while it goes on: a live picture on a terminal, a line now and then elsewhere.

In: `Progress` a few times a second, and each stage's report once it was judged. Out: lines that stay for the
stages that are over, and what the present one does. Next: `summary`, when all of it is over.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnstile.stress.progress import Progress
from turnstile.stress.report import wording
from turnstile.stress.report.run_report import StageReport

_LINE_SECONDS: Final = 2.0
_RATE_SECONDS: Final = 3.0
_BAR_WIDTH: Final = 40


class LiveView(Protocol):
    """Where a run is shown while it goes on."""

    def show(self, progress: Progress) -> None:
        """Show how far a stage has come."""
        ...

    def judging(self, title: str) -> None:
        """Say that a stage is over and being judged, which may take a while."""
        ...

    def judged(self, report: StageReport) -> None:
        """Say for good what a stage came to."""
        ...

    def failed(self, title: str, why: str) -> None:
        """Say for good that a stage could not be carried out."""
        ...


@contextmanager
def live_view(console: Console) -> Iterator[LiveView]:
    """Lend a view that suits where the console writes to."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Picture(live)


class _Lines:
    """One line every few seconds, none of which is ever taken back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = _Pace()
        self._stage = ""
        self._next_seconds = 0.0
        self._note = ""

    def show(self, progress: Progress) -> None:
        self._pace.see(progress)
        if progress.stage.name != self._stage:
            self._stage = progress.stage.name
            self._next_seconds = 0.0
            self._say(Text(_heading(progress)))
        elif progress.elapsed_seconds < self._next_seconds and progress.note == self._note:
            return
        self._next_seconds = progress.elapsed_seconds + _LINE_SECONDS
        self._note = progress.note
        note = f"; {progress.note}" if progress.note else ""
        rate = wording.rate(self._pace.per_second)
        line = (
            f"{progress.elapsed_seconds:7.1f} s  {progress.sent:,} sent, {progress.waiting:,} waiting, "
            f"{progress.active:,} running, {progress.ended:,} ended, {rate}{note}"
        )
        self._say(Text(line))

    def judging(self, title: str) -> None:
        """Nothing: the next line says what came of it."""

    def judged(self, report: StageReport) -> None:
        self._say(_result(report))

    def failed(self, title: str, why: str) -> None:
        self._say(_failure(title, why))

    def _say(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class _Picture:
    """The present stage at the foot of the terminal, one line above it for each that is over."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._pace = _Pace()

    def show(self, progress: Progress) -> None:
        self._pace.see(progress)
        self._live.update(_picture(progress, self._pace.per_second), refresh=True)

    def judging(self, title: str) -> None:
        self._live.update(Text(f"Checking {title}", style="dim"), refresh=True)

    def judged(self, report: StageReport) -> None:
        self._leave(_result(report))

    def failed(self, title: str, why: str) -> None:
        self._leave(_failure(title, why))

    def _leave(self, text: Text) -> None:
        self._live.update(Text(), refresh=True)
        self._live.console.print(text, soft_wrap=True, highlight=False)


class _Pace:
    """How many have ended in a second, over the last few."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=1000)
        self._stage = ""

    def see(self, progress: Progress) -> None:
        """Take a look into account."""
        if progress.stage.name != self._stage:
            self._stage = progress.stage.name
            self._seen.clear()
        self._seen.append((progress.elapsed_seconds, progress.ended))
        while len(self._seen) > 2 and progress.elapsed_seconds - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 before there are two looks."""
        if not self._seen:
            return 0.0
        (first_seconds, first), (last_seconds, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_seconds - first_seconds) if last_seconds > first_seconds else 0.0


def _picture(progress: Progress, per_second: float) -> Group:
    total = max(progress.stage.load.executions, 1)
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
    return f"Stage {progress.number} of {progress.stages}: {progress.stage.title}"


def _of(count: int, total: int) -> str:
    return f"{count:,} of {total:,}"


def _result(report: StageReport) -> Text:
    figures = report.figures
    measured = f"{figures.ended:,} ended, {wording.rate(figures.executions_per_second)}"
    if figures.hand_over is not None:
        measured += f", hand-over p50 {wording.duration(figures.hand_over.p50_ms)}"
    if not report.broken:
        return Text.assemble(("✓", "bold green"), f" {report.stage.title}: {measured}")
    broken = "; ".join(f"{finding.rule.value} ({finding.broken:,})" for finding in report.broken)
    return Text.assemble(("✗", "bold red"), f" {report.stage.title}: {measured}; broken: {broken}")


def _failure(title: str, why: str) -> Text:
    return Text.assemble(("✗", "bold red"), f" {title}: not carried out: {why}")
