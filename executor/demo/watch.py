"""Shows the queues while the job runs: a live table on a terminal, a line now and then elsewhere.

In: the rows as they are, asked for a few times a second. Out: pictures; and the end, when all executions are
settled, or when nothing has moved for so long that nothing will. Next: `history`.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from turnstile.common.database import Database
from turnstile.executor.demo.history import query

_LOOK_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 2.0
_STUCK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNow:
    """One line as it is now."""

    action_ref: str
    max_concurrent: int | None
    waiting: int
    held: int
    settled: int

    @property
    def arrived(self) -> int:
        """How many came so far."""
        return self.waiting + self.held + self.settled


Show = Callable[[float, Sequence[QueueNow]], None]
"""Takes the seconds since the start and the queues."""


async def watch(database: Database, *, expected: int, console: Console, check: Callable[[], None]) -> None:
    """Show the queues until `expected` executions are settled or nothing moves; `check` may raise."""
    look = query("progress")
    started = moved = time.monotonic()
    before: Sequence[QueueNow] = ()
    with _shown_on(console) as show:
        while sum(queue.settled for queue in before) < expected:
            check()
            queues = [QueueNow(**dict(row)) for row in await database.fetch(look)]
            now = time.monotonic()
            if queues != before:
                moved = now
            elif now - moved > _STUCK_SECONDS:
                return
            before = queues
            show(now - started, queues)
            await asyncio.sleep(_LOOK_SECONDS)


@contextmanager
def _shown_on(console: Console) -> Iterator[Show]:
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda seconds, queues: live.update(_table(seconds, queues), refresh=True)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_seconds = -_LINE_SECONDS

    def show(self, seconds: float, queues: Sequence[QueueNow]) -> None:
        if queues and seconds - self._last_seconds >= _LINE_SECONDS:
            self._last_seconds = seconds
            parts = [
                f"{q.action_ref} {q.held} of {_limit(q)} running, {q.waiting} waiting, {q.settled} done"
                for q in queues
            ]
            self._console.print(f"{seconds:5.1f} s  {'; '.join(parts)}", soft_wrap=True)


def _table(seconds: float, queues: Sequence[QueueNow]) -> Table:
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


def _limit(queue: QueueNow) -> str:
    return "any" if queue.max_concurrent is None else str(queue.max_concurrent)
