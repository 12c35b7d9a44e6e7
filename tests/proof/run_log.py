"""The actions' own record: a line when a run starts, and lines while it runs, out of reach of the services.

In: calls from inside the actions, in the worker, in its children, in commands; the environment variable
`RUN_LOG` names the file. Out: `Run`s; of a run that was killed the stop is unknown, or the last line. A line
is written without a lock, which a paused process could hold. As a command it runs for the `seconds` of its
parameters and prints the execution's id. Imports little, since every command loads it.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

RUN_LOG_VARIABLE: Final = "RUN_LOG"
RUN_LOG: Final = "runs.jsonl"
"""The file in the folder of a run."""
_SEEN_EVERY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One physical run, as the action recorded it."""

    execution_id: int
    attempt: int
    pid: int
    started_ns: int
    """CLOCK_BOOTTIME."""
    stopped_ns: int | None
    """None: it was killed, or raised, before it recorded its stop."""


def log_run(event: Literal["start", "stop"], execution_id: int, attempt: int) -> None:
    """Write one line, whole or not at all."""
    line = {
        "event": event,
        "execution_id": execution_id,
        "attempt": attempt,
        "pid": os.getpid(),
        "at_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    }
    out = os.open(os.environ[RUN_LOG_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(out, json.dumps(line).encode() + b"\n")
    finally:
        os.close(out)


async def log_while_running(execution_id: int, attempt: int, seconds: float) -> None:
    """Run for this time in the event loop."""
    import asyncio  # Commands do not need it.

    log_run("start", execution_id, attempt)
    for piece in _pieces(seconds):
        await asyncio.sleep(piece)
        log_run("stop", execution_id, attempt)


def log_while_blocking(execution_id: int, attempt: int, seconds: float) -> None:
    """Run for this time in a process of its own."""
    log_run("start", execution_id, attempt)
    for piece in _pieces(seconds):
        time.sleep(piece)
        log_run("stop", execution_id, attempt)


def _pieces(seconds: float) -> Iterator[float]:
    """Split a run: the line after each piece is its last sign of life, if it is killed in the next."""
    while seconds > _SEEN_EVERY_SECONDS:
        yield _SEEN_EVERY_SECONDS
        seconds -= _SEEN_EVERY_SECONDS
    yield seconds


def read_runs(file: Path) -> list[Run]:
    """Return all runs in the order of their starts."""
    return list(_runs(file.read_text())) if file.exists() else []


def booted_at() -> datetime:
    """Return the instant at which this machine's CLOCK_BOOTTIME was 0, by the clock of its servers."""
    return datetime.now(UTC) - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


def _runs(text: str) -> Iterator[Run]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    stops: dict[tuple[int, int, int], int] = {
        (line["execution_id"], line["attempt"], line["pid"]): line["at_ns"]
        for line in lines
        if line["event"] == "stop"
    }
    for line in sorted((line for line in lines if line["event"] == "start"), key=lambda line: line["at_ns"]):
        key = line["execution_id"], line["attempt"], line["pid"]
        yield Run(
            execution_id=line["execution_id"],
            attempt=line["attempt"],
            pid=line["pid"],
            started_ns=line["at_ns"],
            stopped_ns=stops.get(key),
        )


def _main() -> None:
    execution_id, attempt = (int(os.environ[f"TURNSTILE_{name}"]) for name in ("EXECUTION_ID", "ATTEMPT"))
    log_while_blocking(execution_id, attempt, json.load(sys.stdin)["seconds"])
    sys.stdout.write(json.dumps(execution_id))


if __name__ == "__main__":
    _main()
