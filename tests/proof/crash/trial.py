"""One trial: arm processes, submit until each has died at its crash point, replace them, drain, check.

In: an environment and `Case`s. Out: what is wrong with the whole history so far. A process that does not die
never came to its point: that fails the trial. Executors die one after the other, each while it heals what
the last one left; workers die side by side.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from tests.proof.crash.environment import ACTIONS, Environment, submit_everything
from tests.proof.crash.triggers import REQUESTS, STEPS, SWEEPS, settings_for
from tests.support.processes import Service
from turnstile.common.crash_points import VARIABLE, CrashPoint

_DEADLINE_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 0.1
_POLL_SECONDS: Final = 0.02
_HOLDS_ENOUGH: Final = """
SELECT count(*) >= $2
FROM slot s JOIN worker w ON w.id = s.worker_id JOIN execution e ON e.id = s.execution_id
WHERE w.pid = $1 AND s.finished_at IS NULL AND e.parameters ->> 'gate' = $3
"""
_EXECUTOR: Final = {point for point in CrashPoint if point.startswith("executor.")}


_TAKEN_OVER: Final = (
    CrashPoint.COMPLETIONS_RECEIVED,
    CrashPoint.COMPLETIONS_SETTLED,
    CrashPoint.COMPLETIONS_PUBLISHED,
)


class Takeover(StrEnum):
    """How the executor that settles loses its consumer priority in the middle of a batch."""

    KILLED = "killed_beside_another"
    STOPPED = "stopped_beside_another"
    """It hangs until another one has settled everything, and continues then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The point at which a process dies, and at which of its passages."""

    point: CrashPoint
    times: int
    sweep: str | None = None
    """The sweep of the watchdog that gets work."""
    takeover: Takeover | None = None
    """What happens to the executor beside which another one stands by."""

    @property
    def name(self) -> str:
        """The point, the sweep or takeover, and the number."""
        return ".".join(filter(None, (self.point, self.sweep, self.takeover))) + f":{self.times}"

    @property
    def armed(self) -> dict[str, str]:
        """The environment of the process that will die."""
        how = ":stop" if self.takeover is Takeover.STOPPED else ""
        # Another sweep must not be the one that dies.
        step = f"/{self.sweep}" if self.sweep else ""
        return {VARIABLE: f"{self.point}{step}:{self.times}{how}"}


def cases(times: int) -> list[Case]:
    """Return a case for each point and each sweep of the watchdog, then those with a takeover."""
    alone = [
        Case(point=point, times=times, sweep=sweep)
        for point in CrashPoint
        for sweep in (SWEEPS if point is CrashPoint.SWEPT else (None,))
    ]
    beside = [
        Case(point=point, times=times, takeover=takeover) for takeover in Takeover for point in _TAKEN_OVER
    ]
    return [*alone, *beside]


def groups(times: int) -> dict[str, list[Case]]:
    """Return the same cases, grouped so that one may die while it heals what another left.

    Sweeps are separate: what requests leave behind would be swept first.
    """
    beside = {"takeovers": [case for case in cases(times) if case.takeover is not None]}
    return {
        kind: [case for case in cases(times) if case.point in points and case.takeover is None]
        for kind, points in (
            ("requests and completions", _EXECUTOR - {CrashPoint.SWEPT}),
            ("sweeps", {CrashPoint.SWEPT}),
            ("attempts", set(CrashPoint) - _EXECUTOR - {CrashPoint.ATTEMPT_HANDED_BACK}),
            ("drains", {CrashPoint.ATTEMPT_HANDED_BACK}),
        )
    } | beside


async def tried(env: Environment, cases: Sequence[Case]) -> list[str]:
    """Carry out cases of one kind, and return what is wrong afterwards."""
    async with env.window(", ".join(case.name for case in cases)):
        if cases[0].point in _EXECUTOR:
            # Each armed executor is the only one or the first one, so that it does everything of its kind.
            for case in cases:
                await env.kill_executor()
                await _kill_executor(env, case)
            if env.executor is None:
                await env.replace_executor()
        elif cases[0].point is CrashPoint.ATTEMPT_HANDED_BACK:
            await _kill_draining_workers(env, cases)
        else:
            await _kill_workers(env, cases)
    return [*await env.drain(), *await env.faults()]


async def _kill_executor(env: Environment, case: Case) -> None:
    settings = {} if case.sweep is None else settings_for(case.sweep)
    armed = await env.system.start_executor(wait=False, **settings, **case.armed)
    env.armed = [armed]
    await _ready_or_there(armed)
    if case.takeover is not None:
        # It subscribed later, so it gets what the armed one leaves.
        await env.replace_executor()
    if case.takeover is Takeover.STOPPED:
        await _stops_and_continues(env, armed, case)
    else:
        await _dies(armed, partial(_trigger, env, case, armed.http_url), case)


async def _ready_or_there(armed: Service) -> None:
    """Wait until the executor is ready, or already at its point by what the executor before it left."""
    ready = asyncio.create_task(armed.ready(), name="ready")
    try:
        while not (ready.done() or _is_stopped(armed)):
            await asyncio.sleep(_POLL_SECONDS)
        if ready.done() and armed.process.returncode is None:
            ready.result()
    finally:
        ready.cancel()
        with suppress(asyncio.CancelledError, AssertionError):
            await ready


async def _stops_and_continues(env: Environment, armed: Service, case: Case) -> None:
    """Let the other executor settle everything while the armed one hangs; then let that one continue."""
    assert env.executor is not None
    url = env.executor.http_url
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while not _is_stopped(armed):
        assert asyncio.get_running_loop().time() < deadline, f"no process came to {case.name}"
        await submit_everything(env.client, url)
    faults = await env.drain()
    armed.signal(signal.SIGCONT)
    assert not faults, faults
    await armed.ready()
    assert await armed.stop() == 0, armed.log.read_text()[-4000:]


def _is_stopped(armed: Service) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{armed.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


async def _trigger(env: Environment, case: Case, url: str) -> None:
    if case.sweep is not None:
        await SWEEPS[case.sweep](env)
    elif case.point in STEPS:
        await STEPS[case.point](env)
    elif case.point in REQUESTS:
        await REQUESTS[case.point](env, url)
    else:
        await submit_everything(env.client, url)


async def _kill_workers(env: Environment, cases: Sequence[Case]) -> None:
    """Let the armed workers share the work with the one that stays."""
    executor = env.executor or await env.replace_executor()
    env.armed = [await env.system.start_worker(ACTIONS, **case.armed) for case in cases]
    for armed, case in zip(env.armed, cases, strict=True):
        await _dies(armed, partial(_trigger, env, case, executor.http_url), case)


async def _kill_draining_workers(env: Environment, cases: Sequence[Case]) -> None:
    """Let each armed worker drain while it runs what does not end in time."""
    if env.executor is None:
        await env.replace_executor()
    for case in cases:
        armed = await env.system.start_worker(ACTIONS, TURNSTILE_DRAIN_TIMEOUT="100ms", **case.armed)
        env.armed = [armed]
        gate = env.system.folder / f"gate {armed.pid}"
        gated = {"action_ref": "crash.gated", "parameters": {"gate": str(gate)}}
        # The worker that stays gets every second of them.
        await env.client.publish(*[gated] * 2 * (case.times + 1))
        # Runs of the case before, whose gate is open, may come to this worker too.
        await env.history.until(
            _HOLDS_ENOUGH, armed.pid, case.times, str(gate), deadline_seconds=_DEADLINE_SECONDS
        )
        armed.signal(signal.SIGTERM)
        await _dies(armed, None, case)
        gate.touch()


async def _dies(armed: Service, trigger: Callable[[], Awaitable[None]] | None, case: Case) -> None:
    """Repeat the trigger until the armed process has killed itself."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while armed.process.returncode is None:
        assert asyncio.get_running_loop().time() < deadline, f"no process came to {case.name}"
        if trigger is not None:
            await trigger()
        with suppress(TimeoutError):
            await asyncio.wait_for(armed.process.wait(), _PAUSE_SECONDS)
    assert armed.process.returncode == -signal.SIGKILL, armed.log.read_text()[-4000:]
