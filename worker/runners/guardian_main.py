"""The guardian process: kills the groups noted when its input ends, or when a deadline passes.

In: lines `+<group>` and `-<group>`, and `=<seconds>`, an instant of `clock()`, or `=` for none. Once it has
passed, all groups noted die, and those noted later at once, until another deadline comes: so a worker that is
stopped or cut off has nothing running when its lease ends (P6). It runs with the standard library alone and
imports nothing of this project.
"""

import os
import select
import signal
import time
from typing import Final

_STDIN: Final = 0
_CHUNK_BYTES: Final = 64 * 1024
# Waiting is counted on a clock that stands still while the machine sleeps: look at the other one as often.
_LOOK_SECONDS: Final = 1.0


def clock() -> float:
    """Return seconds of the clock of deadlines: it also counts while the machine sleeps."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class _Notes:
    """What the worker has said so far."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._dead: set[int] = set()
        self._deadline_seconds: float | None = None

    def take(self, line: str) -> None:
        kind, value = line[0], line[1:]
        if kind == "=":
            self._deadline_seconds = float(value) if value else None
        elif kind == "+":
            self._groups.add(int(value))
        else:
            self._groups.discard(int(value))
            self._dead.discard(int(value))

    def timeout_seconds(self) -> float | None:
        if self._deadline_seconds is None or self._groups <= self._dead:
            return None
        return min(max(0.0, self._deadline_seconds - clock()), _LOOK_SECONDS)

    def end_overdue(self) -> None:
        if self._deadline_seconds is not None and clock() >= self._deadline_seconds:
            self.end_all()

    def end_all(self) -> None:
        for group in self._groups - self._dead:
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self._dead |= self._groups


def main() -> None:
    """Keep the notes until the input ends."""
    # It outlives a signal meant for the worker's whole service: the closing of the pipe is its only order.
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)
    notes, rest = _Notes(), b""
    while True:
        readable, _, _ = select.select([_STDIN], [], [], notes.timeout_seconds())
        if readable:
            data = os.read(_STDIN, _CHUNK_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                notes.take(line.decode())
        notes.end_overdue()
    notes.end_all()


if __name__ == "__main__":
    main()
