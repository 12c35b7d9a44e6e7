"""Shows the queues while the job runs: a live table on a terminal, a line every two seconds elsewhere.

In: the current rows of the database, several times a second. Returns when all executions are settled, or when
nothing has changed for 30 seconds; the report then says what is missing.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from turnstile.common.database import Database

_POLL_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 2.0
_STUCK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The current state of one queue."""

    action_ref: str
    max_concurrent: int | None
    waiting: int
    held: int
    settled: int

    @property
    def arrived(self) -> int:
        """Executions so far."""
        return self.waiting + self.held + self.settled


Show = Callable[[float, Sequence[QueueState]], None]
"""Called with the seconds since the start and the queues."""


async def watch(
    database: Database, *, expected: int, console: Console, check_running: Callable[[], None]
) -> None:
    """Show the queues until `expected` executions are settled or nothing changes.

    `check_running` may raise.
    """
    query = resources.files(__package__).joinpath("progress.sql").read_text(encoding="utf-8")
    started = changed = time.monotonic()
    previous: Sequence[QueueState] = ()
    with _display(console) as show:
        while sum(queue.settled for queue in previous) < expected:
            check_running()
            queues = [QueueState(**dict(row)) for row in await database.fetch(query)]
            now = time.monotonic()
            if queues != previous:
                changed = now
            elif now - changed > _STUCK_SECONDS:
                return
            previous = queues
            show(now - started, queues)
            await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def _display(console: Console) -> Iterator[Show]:
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda seconds, queues: live.update(_table(seconds, queues), refresh=True)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_seconds = -_LINE_SECONDS

    def show(self, seconds: float, queues: Sequence[QueueState]) -> None:
        if queues and seconds - self._last_seconds >= _LINE_SECONDS:
            self._last_seconds = seconds
            parts = [
                f"{q.action_ref} {q.held} of {_limit(q)} running, {q.waiting} waiting, {q.settled} done"
                for q in queues
            ]
            self._console.print(f"{seconds:5.1f} s  {'; '.join(parts)}", soft_wrap=True)


def _table(seconds: float, queues: Sequence[QueueState]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="none")
    table.title = f"{seconds:.1f} s"
    for heading in ("ACTION", "LIMIT", "RUNNING", "WAITING", "DONE", ""):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("WAITING", "DONE") else "left")
    for queue in queues:
        free = 0 if queue.max_concurrent is None else max(queue.max_concurrent - queue.held, 0)
        table.add_row(
            queue.action_ref,
            _limit(queue),
            f"[green]{'■' * queue.held}[/][dim]{'□' * free}[/]",
            str(queue.waiting),
            str(queue.settled),
            ProgressBar(total=max(queue.arrived, 1), completed=queue.settled, width=40),
        )
    return table


def _limit(queue: QueueState) -> str:
    return "none" if queue.max_concurrent is None else str(queue.max_concurrent)
