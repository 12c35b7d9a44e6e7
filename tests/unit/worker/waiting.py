"""The state of processes, the outcomes of reports, and calls of a runner."""

import asyncio
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.traffic import until
from turnstile.worker.core.outcomes import Cancelled, Completed, Failed, Failure, TimedOut
from turnstile.worker.runners.base import Call, Interrupted, Runner, RunReport


def is_alive(pid: int) -> bool:
    """Return whether the process runs; one that has ended but is not reaped does not."""
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
    """Wait until none of them is alive: a killed process may take a moment to die."""
    assert pids
    await until(lambda: not any(is_alive(pid) for pid in pids))


def peak_bytes() -> int:
    """Return the peak memory of this process."""
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


class Calls:
    """Runs calls on one runner."""

    def __init__(self, runner: Runner, make: Callable[..., Call]) -> None:
        self.runner = runner
        self.make = make

    async def run(self, *args: Any, **parameters: Any) -> RunReport:
        """Run a call to its end."""
        return await self.runner.run(self.make(*args, **parameters))

    def start(self, *args: Any, **parameters: Any) -> tuple[Call, asyncio.Task[RunReport]]:
        """Start a call."""
        call = self.make(*args, **parameters)
        return call, asyncio.create_task(self.runner.run(call))

    def on(self, runner: Runner) -> "Calls":
        """Return the same calls on another runner."""
        return Calls(runner, self.make)
