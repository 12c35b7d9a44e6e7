"""Runs that leave a trace while they run: a line every few hundredths of a second, whatever runs them.

Served as actions (`tick.async`, `tick.child` ...), and run as a command, with the parameters on stdin.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnstile.worker import Context, action

_TICK_SECONDS = 0.05
COMMAND = [sys.executable, str(Path(__file__))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One trace of one attempt."""

    kind: str
    execution_id: int
    attempt: int
    pid: int
    at: float
    """By the wall clock, which the database on the same machine uses too."""
    event: str = "tick"


def ticks_in(file: Path) -> list[Tick]:
    """Return all that was written so far, leaving out a line that is being written."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [Tick(**json.loads(line)) for line in lines if line.endswith("\n")]


@action("tick.async")
async def tick_async(context: Context, file: str, seconds: list[float]) -> int:
    """Tick for seconds[attempt - 1]."""
    for _ in _ticking("async", context.execution_id, context.attempt, file, seconds):
        await asyncio.sleep(_TICK_SECONDS)
    return context.attempt


@action("tick.child")
def tick_child(context: Context, file: str, seconds: list[float]) -> int:
    """Tick in a process of its own."""
    for _ in _ticking("child", context.execution_id, context.attempt, file, seconds):
        time.sleep(_TICK_SECONDS)
    return context.attempt


def _ticking(kind: str, execution_id: int, attempt: int, file: str, seconds: list[float]) -> Iterator[None]:
    def write(event: str) -> None:
        tick = Tick(
            kind=kind,
            execution_id=execution_id,
            attempt=attempt,
            pid=os.getpid(),
            at=time.time(),
            event=event,
        )
        # One write of less than a page to a file opened for appending: lines stay whole.
        out.write(json.dumps(asdict(tick)).encode() + b"\n")

    with Path(file).open("ab", buffering=0) as out:
        until = time.monotonic() + seconds[min(attempt, len(seconds)) - 1]
        write("start")
        while time.monotonic() < until:
            yield
            write("tick")
        write("stop")


def _main() -> None:
    # Only SIGKILL ends it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parameters: dict[str, Any] = json.load(sys.stdin)
    execution_id = int(os.environ["TURNSTILE_EXECUTION_ID"])
    attempt = int(os.environ["TURNSTILE_ATTEMPT"])
    for _ in _ticking("command", execution_id, attempt, parameters["file"], parameters["seconds"]):
        time.sleep(_TICK_SECONDS)
    print(attempt)


if __name__ == "__main__":
    _main()
