"""What a job does in every system: it writes that it starts, does nothing, and writes that it stops.

In: its arguments, and the environment that `session` gives to every process. Out: marks in one file for each
process. A held job waits in between for a file that says that all others wait behind it.
"""

import os
import time
from pathlib import Path
from typing import Final

from benchmarks.waiting import until
from turnstile.stress.marks import START, STOP, MarkWriter

AMQP_URL: Final = "BENCH_AMQP_URL"
DATABASE_URL: Final = "BENCH_DATABASE_URL"
REDIS_URL: Final = "BENCH_REDIS_URL"
REDIS_PREFIX: Final = "BENCH_REDIS_PREFIX"
GROUPS: Final = "BENCH_GROUPS"
"""Those that the variant takes part in."""
MARKS: Final = "BENCH_MARKS"
"""The folder of the marks."""

_POLL_SECONDS: Final = 0.002
_HELD_SECONDS_MAX: Final = 120.0

_writers: dict[int, MarkWriter] = {}


def setting(name: str) -> str:
    """Return what the environment says."""
    return os.environ[name]


def gate_of(folder: Path, load: int) -> Path:
    """Return the file whose appearance lets the held job of a load go."""
    return folder / f"{load}.open"


def mark(kind: int, load: int, action: int, number: int) -> None:
    """Write a mark: the load stands where an execution's id does, the action where its attempt does."""
    pid = os.getpid()
    if pid not in _writers:
        # By process: some of the systems fork after they have imported their jobs.
        _writers[pid] = MarkWriter(Path(setting(MARKS)))
    _writers[pid].mark(kind, number, load, action)


async def run(load: int, action: int, number: int, held: bool) -> None:
    """Be a job, in an event loop."""
    mark(START, load, action, number)
    if held:
        gate = gate_of(Path(setting(MARKS)), load)

        async def opened() -> bool:
            return gate.exists()

        await until(
            opened, "the others wait", deadline_seconds=_HELD_SECONDS_MAX, pause_seconds=_POLL_SECONDS
        )
    mark(STOP, load, action, number)


def run_blocking(load: int, action: int, number: int, held: bool) -> None:
    """Be a job, in a thread or process of its own."""
    mark(START, load, action, number)
    if held:
        gate, deadline = gate_of(Path(setting(MARKS)), load), time.monotonic() + _HELD_SECONDS_MAX
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    mark(STOP, load, action, number)
