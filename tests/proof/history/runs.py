"""The actions' own word: a line when a run starts, one when it stops, where nothing of ours can tidy them up.

In: calls of `note` from inside the actions, in whatever process they run. Out: `Physical`s; a run that is
killed leaves no stop. No lock is taken for a line: a process that is paused while it held one would stop all
others.
"""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tests.proof.history.recording import Physical


def note(file: str, event: Literal["start", "stop"], execution_id: int, attempt: int) -> None:
    """Write one line, whole or not at all."""
    line = {
        "event": event,
        "execution_id": execution_id,
        "attempt": attempt,
        "pid": os.getpid(),
        "at_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    }
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(out, json.dumps(line).encode() + b"\n")
    finally:
        os.close(out)


def read_runs(file: Path) -> list[Physical]:
    """Return all runs in the order of their starts."""
    return list(_runs(file.read_text())) if file.exists() else []


def booted_at() -> datetime:
    """Return the instant at which this machine's CLOCK_BOOTTIME was 0, by the clock of its servers."""
    return datetime.now(UTC) - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


def _runs(text: str) -> Iterator[Physical]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    stops: dict[tuple[int, int, int], int] = {
        (line["execution_id"], line["attempt"], line["pid"]): line["at_ns"]
        for line in lines
        if line["event"] == "stop"
    }
    for line in sorted((line for line in lines if line["event"] == "start"), key=lambda line: line["at_ns"]):
        key = line["execution_id"], line["attempt"], line["pid"]
        yield Physical(
            execution_id=line["execution_id"],
            attempt=line["attempt"],
            pid=line["pid"],
            started_ns=line["at_ns"],
            stopped_ns=stops.get(key),
        )
