"""Actions of the end-to-end tests. `record` writes its runs to a file, out of reach of the services."""

import asyncio
import fcntl
import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from turnstile.worker import Context, PermanentError, TemporaryError, action


@action("noop")
async def noop(number: int = 0) -> int:
    """Return its parameter."""
    return number


@dataclass(frozen=True)
class Parcel:
    """What `shipped` returns."""

    number: int
    at: datetime


@action("shipped")
async def shipped(context: Context, number: int, at: datetime) -> Parcel:
    """Return its parameters as a parcel."""
    return Parcel(number, at)


@action("misdeclared")
async def misdeclared() -> int:
    """Return no number."""
    return cast(int, "seven")


@action("large")
async def large(size_bytes: int, ends_at: float) -> str:
    """Return a text of that size at that time, by time.time()."""
    await asyncio.sleep(max(ends_at - time.time(), 0))
    return "x" * (size_bytes - 2)


@action("record", max_concurrent=1)
async def record(context: Context, file: str, number: int = 0, seconds: float = 0.0, client: int = 0) -> int:
    """Append a line at the start and one at the stop; their order in `file` is that of the runs."""
    _append(file, "start", context, number, client)
    await asyncio.sleep(seconds)
    _append(file, "stop", context, number, client)
    return number


@action("scripted", submitter_keys=True)
async def scripted(context: Context, steps: list[str]) -> str:
    """Do on attempt n what steps[n-1] says: OK, FAIL, PERMANENT, LATER, HANG, KILL."""
    step = steps[min(context.attempt, len(steps)) - 1]
    match step:
        case "FAIL":
            raise RuntimeError("as the script says")
        case "PERMANENT":
            raise PermanentError("as the script says")
        case "LATER":
            raise TemporaryError("as the script says", delay=0.2)
        case "HANG":
            await asyncio.sleep(3600)
        case "KILL":
            os.kill(os.getpid(), 9)
        case _:
            pass
    return step


@action(
    "retried",
    max_concurrent=1,
    submitter_keys=True,
    retry={"max_attempts": 3, "delay": "1s", "max_delay": "1h", "factor": 60},
)
async def retried(context: Context, steps: list[str]) -> str:
    """Do what `scripted` does, tried three times."""
    return await scripted(context, steps)


@action("blocking")
def blocking(seconds: float = 0.0) -> int:
    """Block a child process; returns its pid."""
    time.sleep(seconds)
    return os.getpid()


@action("record.seven", max_concurrent=7)
async def record_seven(context: Context, file: str, number: int = 0) -> int:
    """Do what `record` does, seven at once."""
    return await record(context, file, number)


@action("one", max_concurrent=1, submitter_keys=True)
async def one() -> None:
    """Take no time."""


@dataclass(frozen=True)
class Attempted:
    """What the actions below know about their attempt."""

    metadata: dict[str, str]
    concurrency_key: str | None
    idempotency_key: str | None
    seconds_left: float | None


@action("reports", timeout="1m", concurrency_key="/file")
async def reports(context: Context, file: str, total: int = 4) -> Attempted:
    """Report half of the work, wait for the file, and report the rest."""
    _report_half(context, total)
    while not _is_there(file):
        await asyncio.sleep(0.02)
    context.progress(total // 2 + 1, total, "the file is there")
    # That one is stored at once. Those that follow within a second are stored at the end alone.
    await asyncio.sleep(0.05)
    return _report_rest(context, total)


@action("reports.plain", timeout="1m", concurrency_key="/file")
def reports_plain(context: Context, file: str, total: int = 4) -> Attempted:
    """Do what `reports` does, in a child process."""
    _report_half(context, total)
    while not Path(file).exists():
        time.sleep(0.02)
    context.progress(total // 2 + 1, total, "the file is there")
    time.sleep(0.05)
    return _report_rest(context, total)


def _report_half(context: Context, total: int) -> None:
    for done in range(total // 2 + 1):
        context.progress(done, total, f"page {done}")


def _report_rest(context: Context, total: int) -> Attempted:
    for done in range(total // 2 + 1, total + 1):
        context.progress(done, total, f"page {done}")
    left = None if context.deadline is None else (context.deadline - datetime.now(UTC)).total_seconds()
    return Attempted(dict(context.metadata), context.concurrency_key, context.idempotency_key, left)


@action("hold", max_concurrent=1, submitter_keys=True)
async def hold() -> None:
    """Run until it is cancelled."""
    await asyncio.Event().wait()


@action("gate", max_concurrent=1)
async def gate(file: str) -> None:
    """Run until the file is there."""
    while not _is_there(file):
        await asyncio.sleep(0.02)


async def tiny(seconds: float = 0.0) -> None:
    """Take a little time."""
    await asyncio.sleep(seconds)


for _limit in (1, 2, 3, 5):
    action(f"tiny.{_limit}", max_concurrent=_limit, submitter_keys=True)(tiny)


def _is_there(file: str) -> bool:
    return Path(file).exists()


def _append(file: str, event: str, context: Context, number: int, client: int) -> None:
    line = json.dumps(
        {
            "event": event,
            "execution_id": context.execution_id,
            "attempt": context.attempt,
            "number": number,
            "client": client,
            "at": time.monotonic_ns(),
        }
    )
    with Path(file).open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        out.write(line + "\n")
