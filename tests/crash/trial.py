"""One trial: arm a process, ask until it has died at its point by its own hand, replace it, drain, judge.

In: a ground and a `Case`. Out: the faults that the whole history so far shows; none is as it should be. A
process that does not die was never at its point: that fails the trial.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from common.crash_points import VARIABLE, CrashPoint
from tests.crash.client import send_wave
from tests.crash.ground import ACTIONS, Ground
from tests.crash.sweeps import SWEEPS
from tests.e2e.processes import Service

_DEADLINE_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Who dies where, and when it is there for which time."""

    point: CrashPoint
    times: int
    sweep: str | None = None
    """The sweep that is given something to do."""

    @property
    def name(self) -> str:
        """The case in a word."""
        return f"{self.point}{f' ({self.sweep})' if self.sweep else ''}:{self.times}"

    @property
    def armed(self) -> dict[str, str]:
        """The environment of the process that is to die."""
        return {VARIABLE: f"{self.point}:{self.times}"}


def cases(times: int) -> Iterator[Case]:
    """Yield a case for each point, those of executors first, and for each sweep of the watchdog."""
    for point in CrashPoint:
        if point is CrashPoint.SWEPT:
            for sweep in SWEEPS:
                yield Case(point=point, times=times, sweep=sweep)
        else:
            yield Case(point=point, times=times)


async def tried(ground: Ground, case: Case) -> list[str]:
    """Carry out one case, and return what is wrong afterwards."""
    async with asyncio.timeout(2 * _DEADLINE_SECONDS):
        if case.point.startswith("executor."):
            await _kill_executor(ground, case)
        elif case.point is CrashPoint.ATTEMPT_HANDED_BACK:
            await _kill_draining_worker(ground, case)
        else:
            await _kill_worker(ground, case)
        await ground.drained()
        return await ground.faults()


async def _kill_executor(ground: Ground, case: Case) -> None:
    """Let the armed executor be the only one, so that all that its kind does is done by it."""
    await ground.without_executor()
    async with ground.window(case.name):
        armed = ground.armed = await ground.system.start_executor(wait=True, **case.armed)

        async def ask() -> None:
            if case.sweep is not None:
                await SWEEPS[case.sweep](ground)
            else:
                await send_wave(ground.client, armed.http_url)

        await _dies(armed, ask, case)
        await ground.replace_executor()


async def _kill_worker(ground: Ground, case: Case) -> None:
    """Let the armed worker share the work with the one that stays."""
    executor = ground.executor or await ground.replace_executor()
    async with ground.window(case.name):
        armed = ground.armed = await ground.system.start_worker(ACTIONS, **case.armed)
        await _dies(armed, lambda: send_wave(ground.client, executor.http_url), case)


async def _kill_draining_worker(ground: Ground, case: Case) -> None:
    """Let the armed worker drain while it runs what will not end in time."""
    if ground.executor is None:
        await ground.replace_executor()
    gate = ground.system.folder / f"gate {case.times}"
    async with ground.window(case.name):
        armed = ground.armed = await ground.system.start_worker(
            ACTIONS, TURNSTILE_DRAIN_TIMEOUT="100ms", **case.armed
        )
        gated = {"action_ref": "crash.gated", "parameters": {"gate": str(gate)}}
        await ground.client.publish(*[gated] * 2 * case.times)

        async def runs_enough() -> bool:
            return await _running(ground, armed) >= case.times

        async def ask_for_more() -> None:
            if not await runs_enough():
                await ground.client.publish(gated)

        while not await runs_enough():
            await ask_for_more()
            await asyncio.sleep(_PAUSE_SECONDS)
        armed.signal(signal.SIGTERM)
        await _dies(armed, _nothing, case)
        gate.touch()


async def _running(ground: Ground, worker: Service) -> int:
    found: int = await ground.connection.fetchval(
        """
        SELECT count(*) FROM slot s JOIN worker w ON w.id = s.worker_id
        WHERE w.pid = $1 AND s.finished_at IS NULL
        """,
        worker.pid,
    )
    return found


async def _nothing() -> None:
    pass


async def _dies(armed: Service, ask: Callable[[], Awaitable[None]], case: Case) -> None:
    """Ask again and again until the armed process has killed itself."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while armed.process.returncode is None:
        assert asyncio.get_running_loop().time() < deadline, f"nobody came to {case.name}"
        await ask()
        with suppress(TimeoutError):
            await asyncio.wait_for(armed.process.wait(), _PAUSE_SECONDS)
    assert armed.process.returncode == -signal.SIGKILL, armed.log.read_text()[-4000:]
