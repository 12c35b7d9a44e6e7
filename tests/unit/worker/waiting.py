"""Waiting for a condition with a deadline, and looking at processes."""

import asyncio
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from turnstile.common.domain.outcomes import Cancelled, Completed, Failed, Failure, TimedOut
from turnstile.worker.runners import Interrupted, RunReport


async def until(condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Wait until `condition()` holds; fail after the deadline."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet reaped does not."""
    return _state(pid) not in ("Z", "X", "")


def _state(pid: int | str) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def unreaped() -> list[str]:
    """Return our children that are dead, or stopped and about to be killed."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if _state(pid) in ("Z", "X", "T")]


async def gone(pids: list[int]) -> None:
    """Wait until none of them is alive: killed stragglers may take a moment to die."""
    assert pids
    await until(lambda: not any(is_alive(pid) for pid in pids))


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def has_text(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def pids_in(path: Path, count: int) -> list[int]:
    """Return the numbers in a file that has `count` lines by now, else none."""
    lines = path.read_text().split() if path.exists() else []
    return [int(line) for line in lines] if len(lines) == count else []


def result_of(report: RunReport) -> str:
    assert isinstance(report.outcome, Completed), report
    return report.outcome.result_json


def failure_in(report: RunReport) -> Failure:
    assert not isinstance(report.outcome, Completed | Interrupted), report
    return report.outcome.failure


def failed_in(report: RunReport) -> Failed:
    assert isinstance(report.outcome, Failed), report
    return report.outcome


def stopped_in(report: RunReport) -> TimedOut | Cancelled | Interrupted:
    assert isinstance(report.outcome, TimedOut | Cancelled | Interrupted), report
    return report.outcome
