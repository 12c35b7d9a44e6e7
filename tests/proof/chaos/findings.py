"""What is wrong with a run beside its history: facts that the harness itself knows, and the audit.

In: the environment, what happened, and what was read. Out: one sentence for each thing that no fault
explains, and the bounds on the history.
"""

import os
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from tests.proof.chaos.environment import LEASE_SECONDS, WORKER_SLOTS, Environment
from tests.proof.chaos.faults import Injected
from tests.proof.chaos.history import Lost, Window, Witnessed
from tests.proof.chaos.judge import Bounds
from tests.proof.chaos.schedule import Kind
from tests.proof.chaos.submitters import SubmitLog
from tests.proof.run_log import RUN_LOG, RUN_LOG_VARIABLE

FENCED: Final = 70
"""The exit code of a worker that ends itself because it cannot stop what it runs."""
_AUDIT_SECONDS: Final = 40.0
_AFTERMATH: Final = timedelta(seconds=2.0)
"""From the healing of a link until a heartbeat has succeeded."""
_SETTLING: Final = timedelta(seconds=5.0)
"""Reconnection, a takeover of the leadership, redelivery by the broker."""
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


async def findings(environment: Environment, course: Course, seen: Witnessed) -> list[str]:
    """Return everything that is wrong in either mode."""
    return [
        *_harness_findings(environment, course),
        *_lost_leases(seen, course.injected, environment.services),
        *await _audit(environment),
    ]


def bounds_of(injected: Sequence[Injected], *, patience: float) -> Bounds:
    """Return the bounds; they do not count while a fault lasts and shortly after it."""
    return Bounds(
        idle_seconds=patience * 1.0,
        overlap_seconds=patience * _OVERLAP_SECONDS,
        worker_slots=WORKER_SLOTS,
        windows=_windows(injected, _SETTLING),
        # Whatever else is broken, only a paused worker has more time: it can stop nothing before it wakes.
        overlap_windows=_windows([i for i in injected if i.fault.kind in _PAUSES], _WAKING),
        abandoned_refs=frozenset({"chaos.free"}),
    )


def _windows(injected: Sequence[Injected], settling: timedelta) -> list[Window]:
    return [Window(began_at=i.began_at, ended_at=i.healed_at + settling) for i in injected]


def _harness_findings(environment: Environment, course: Course) -> Iterator[str]:
    """Yield what was refused, not answered, not done in time, or ended without a fault."""
    for refused in course.log.refused:
        yield f"an answer that no fault explains: {refused}"
    for sent in course.log.sent.values():
        if sent.confirmed_at is None:
            yield f"submission {sent.submit.number} was never confirmed"
    if course.left:
        left = ", ".join(f"{count} {name}" for name, count in course.left.items())
        yield f"not drained after {course.drained_in_seconds:.0f} s: {left}"
    for service in environment.services.values():
        for collapse in service.collapses:
            if not (collapse.exit_code == FENCED and collapse.name.startswith("worker")):
                yield (
                    f"{collapse.name} ended without a fault, with {collapse.exit_code} "
                    f"at {collapse.at:%H:%M:%S}:\n{collapse.last_lines}"
                )


def _lost_leases(seen: Witnessed, injected: Sequence[Injected], services: Collection[str]) -> Iterator[str]:
    """Yield the services that were lost as workers without a fault of their own, or of the broker.

    An outage of the database or of executors alone reclaims no live worker's work.
    """
    for lost in seen.lost:
        # Others are neighbours that say hello and nothing more.
        if lost.name in services and not is_explained(lost, injected):
            yield (
                f"{lost.name} ({lost.worker_id}) was lost at {lost.gone_at:%H:%M:%S.%f}, "
                f"last heard at {lost.heard_at:%H:%M:%S.%f}, without a fault of its own"
            )


def is_explained(lost: Lost, injected: Sequence[Injected]) -> bool:
    """Return whether a fault affected a worker, or the broker, while it was silent.

    What had arrived before another fault of any kind may have been heard after it.
    """
    for each in injected:
        over_at = each.healed_at + _AFTERMATH
        next_over = [other.healed_at + _AFTERMATH for other in injected if other.began_at <= over_at]
        affects = each.fault.target.partition(" ")[0] in (lost.name, "broker")
        affects = affects or each.fault.target == f"session of {lost.name}"
        if affects and each.began_at <= lost.gone_at and lost.heard_at <= max(next_over):
            return True
    return False


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
