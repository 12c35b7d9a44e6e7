"""What is wrong with a run: facts that the harness itself knows, and the history held against the promises.

In: the environment, what happened, and the recording. Out: one sentence for each thing that no fault
explains.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from tests.proof.chaos.environment import LEASE_SECONDS, Environment
from tests.proof.chaos.faults import Injected
from tests.proof.chaos.schedule import Kind
from tests.proof.chaos.submitters import SubmitLog
from tests.proof.history.checker import late_runs, violations
from tests.proof.history.recording import Bounds, Recording, Window, WorkerChange, WorkerEvent
from tests.proof.history.run_log import RUN_LOG, RUN_LOG_VARIABLE
from tests.support.history import session_of

FENCED: Final = 70
"""The exit code of a worker that ends itself because it cannot stop what it runs."""
DRAIN_SECONDS_MAX: Final = 2 * LEASE_SECONDS + 30.0
"""Longest time from the last fault until no work is left, beyond `Course.backlog_seconds`."""
_AUDIT_SECONDS: Final = 40.0
_AFTERMATH: Final = timedelta(seconds=2.0)
"""From the healing of a link until a heartbeat has succeeded."""
_SETTLING: Final = timedelta(seconds=5.0)
"""Reconnection, redelivery by the broker, one settle timeout and its tick."""
_OVERLAP_SECONDS: Final = LEASE_SECONDS / 2 + 1.0
"""How long an answer of the broker counts for a worker in doubt, and its margin for killing."""
_WAKING: Final = timedelta(seconds=1.0)
_PAUSES: Final = frozenset({Kind.WORKER_PAUSED, Kind.WORKER_PAUSED_LONG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What happened in a run, before it is checked."""

    began_at: datetime
    injected: Sequence[Injected]
    log: SubmitLog
    drained_in_seconds: float
    left: dict[str, int]
    backlog_seconds: float = 0.0
    """How long what the faults had left takes at least."""

    @property
    def drain_seconds_max(self) -> float:
        """Longest time from the last fault until no work is left."""
        return DRAIN_SECONDS_MAX + self.backlog_seconds


async def findings(
    environment: Environment, course: Course, recording: Recording, *, patience: float
) -> list[str]:
    """Return everything that is wrong in either mode; times may be `patience` times as long."""
    return [
        *_harness_findings(environment, course, patience),
        *await _lost_leases(environment.database_url, recording, course.injected),
        *await _audit(environment),
    ]


def broken_promises(recording: Recording, injected: Sequence[Injected], *, patience: float) -> list[str]:
    """Hold the history against P1 to P7; bounds do not count while a fault lasts and shortly after it."""
    bounds = Bounds(
        idle_seconds=patience * 1.0,
        leak_seconds=patience * 3.0,
        reclaim_seconds=patience * (LEASE_SECONDS + 2.0),
        overlap_seconds=patience * 1.0,
        windows=_windows(injected, _SETTLING),
    )
    # Whatever else is broken, only a paused worker has more time: it can stop nothing before it wakes.
    overlap = Bounds(
        idle_seconds=0.0,
        leak_seconds=0.0,
        reclaim_seconds=0.0,
        overlap_seconds=patience * _OVERLAP_SECONDS,
        windows=_windows([i for i in injected if i.fault.kind in _PAUSES], _WAKING),
    )
    found = [*violations(recording, bounds=bounds), *late_runs(recording, bounds=overlap)]
    return list(dict.fromkeys(map(str, found)))


def _windows(injected: Sequence[Injected], settling: timedelta) -> list[Window]:
    return [Window(began_at=i.began_at, ended_at=i.healed_at + settling, what=i.fault.kind) for i in injected]


def _harness_findings(environment: Environment, course: Course, patience: float) -> Iterator[str]:
    """Yield what was refused, not answered, not done in time, or ended without a fault."""
    for refused in course.log.refused:
        yield f"an answer that no fault explains: {refused}"
    for sent in course.log.sent.values():
        if sent.confirmed_at is None:
            yield f"submission {sent.submit.number} was never confirmed"
    if course.left:
        left = ", ".join(f"{count} {name}" for name, count in course.left.items())
        yield f"not drained after {course.drained_in_seconds:.0f} s: {left}"
    elif course.drained_in_seconds > patience * course.drain_seconds_max:
        allowed = course.drain_seconds_max
        yield f"drained only after {course.drained_in_seconds:.0f} s, {allowed:.0f} s are allowed"
    for service in environment.services.values():
        for collapse in service.collapses:
            if not (collapse.exit_code == FENCED and collapse.name.startswith("worker")):
                yield (
                    f"{collapse.name} ended without a fault, with {collapse.exit_code} "
                    f"at {collapse.at:%H:%M:%S}:\n{collapse.last_lines}"
                )


async def _lost_leases(database_url: str, recording: Recording, injected: Sequence[Injected]) -> list[str]:
    """Return the live workers that lost their lease without a fault of their own.

    An outage of a server alone reclaims no live worker's work (P6), and nothing else does.
    """
    async with session_of(database_url) as connection:
        names = {row["id"]: row["name"] for row in await connection.fetch("SELECT id, name FROM worker")}
    return [
        f"{names[event.worker_id]} ({event.worker_id}) lost its lease at {event.stamp.at:%H:%M:%S.%f}, "
        f"last renewed at {event.renewed_at:%H:%M:%S.%f}, without a fault of its own"
        for event in recording.events
        if isinstance(event, WorkerEvent)
        and event.change is WorkerChange.LOST
        and not any(_explains(i, names[event.worker_id], event) for i in injected)
    ]


def _explains(injected: Injected, name: str, lost: WorkerEvent) -> bool:
    """Return whether this fault affected that worker while it was silent."""
    is_its_own = injected.fault.target.partition(" ")[0] == name
    silent = injected.began_at <= lost.stamp.at and lost.renewed_at <= injected.healed_at + _AFTERMATH
    return is_its_own and silent


async def _audit(environment: Environment) -> list[str]:
    """Return the faults of the system's own recount."""
    answer = await environment.http.get(
        f"{environment.executors[0].url}/api/v1/audit", timeout=_AUDIT_SECONDS
    )
    if answer.status_code != httpx.codes.OK:
        return [f"audit: {answer.status_code} {answer.text[:300]}"]
    checks = answer.json()["checks"]
    return [f"audit: {c['name']}: {c['says']}: {c['examples']}" for c in checks if c["faults"]]


def left_behind(folder: Path) -> Iterator[str]:
    """Yield the processes that outlived the environment of a run, and kill them."""
    variable = os.fsencode(f"{RUN_LOG_VARIABLE}={folder / RUN_LOG}")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                os.kill(int(process.name), signal.SIGKILL)
                yield f"process {process.name} was left behind: {command}"
