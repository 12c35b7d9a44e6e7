"""Notices which processes are gone, and when that was seen.

In: the marks folder, where each process that ran an action has a file with its number; and the families of
services that are about to be killed. Out: process number to instant. What ran in such a process runs no
more, though it could not say so.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

_LOOK_SECONDS: Final = 0.1


class DeathWatch:
    """Knows who was there at the last look, and who was not."""

    def __init__(self, marks_folder: Path) -> None:
        self._marks_folder = marks_folder
        self._known: set[Path] = set()
        # With when each of them was started, so that another process of the same number is not taken for it.
        self._alive: dict[int, int | None] = {}
        self._gone_at: dict[int, int] = {}

    @property
    def deaths(self) -> Mapping[int, int]:
        """Return when each was seen to be gone, in nanoseconds."""
        return self._gone_at

    def follow(self, pids: Iterable[int]) -> None:
        """Look at these processes too."""
        for pid in pids:
            self._alive.setdefault(pid, _started(pid))

    def look(self) -> None:
        """Note who is gone by now."""
        fresh = set(self._marks_folder.glob("*.marks")) - self._known
        self._known |= fresh
        # A file is called after its process.
        self.follow(int(path.name.partition("-")[0]) for path in fresh)
        now = time.time_ns()
        for pid, started in list(self._alive.items()):
            if started is None or _started(pid) != started:
                del self._alive[pid]
                self._gone_at[pid] = now

    async def look_on(self) -> NoReturn:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def watching(marks_folder: Path) -> AsyncIterator[DeathWatch]:
    """Lend a watch that looks by itself."""
    watch = DeathWatch(marks_folder)
    task = asyncio.create_task(watch.look_on(), name="deaths")
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _started(pid: int) -> int | None:
    """Return when a process was started, in its kernel's own measure; None: it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if _is_gone(pid) else 0
    # The name in parentheses may hold anything; what follows starts at field 3 of proc(5).
    fields = stat.rpartition(")")[2].split()
    # Who was killed is there until its parent has asked how it ended, and that one may be stopped.
    return None if fields[0] in "ZX" else int(fields[19])


def _is_gone(pid: int) -> bool:
    # Where there is no /proc, its number must do.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
