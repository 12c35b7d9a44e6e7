"""One trial: arm processes, ask until each has died at its point by its own hand, replace them, drain, judge.

In: a ground and `Case`s. Out: the faults that the whole history so far shows; none is as it should be. A
process that does not die was never at its point: that fails the trial. Executors die one after the other,
each while it heals what the last one left; workers die beside each other.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from tests.proof.crash.cases import Case
from tests.proof.crash.client import send_wave
from tests.proof.crash.ground import ACTIONS, Ground
from tests.proof.crash.operators import (
    call_back_something,
    cancel_something,
    replay_something,
    resume_something,
)
from tests.proof.crash.sweeps import SWEEPS, armed_for
from tests.support.processes import Service
from tests.support.traffic import until
from turnstile.common.crash_points import CrashPoint

_DEADLINE_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 0.1
_HELD: Final = """
SELECT count(*) FROM slot s JOIN worker w ON w.id = s.worker_id WHERE w.pid = $1 AND s.finished_at IS NULL
"""


async def tried(ground: Ground, cases: Sequence[Case]) -> list[str]:
    """Carry out cases of one kind, and return what is wrong afterwards."""
    async with ground.window(", ".join(case.name for case in cases)):
        if cases[0].point.startswith("executor."):
            await _kill_executors(ground, cases)
        elif cases[0].point is CrashPoint.ATTEMPT_HANDED_BACK:
            await _kill_draining_workers(ground, cases)
        else:
            await _kill_workers(ground, cases)
    return [*await ground.drained(), *await ground.faults()]


async def _kill_executors(ground: Ground, cases: Sequence[Case]) -> None:
    """Let each armed executor be the only one, so that all that its kind does is done by it."""
    await ground.without_executor()
    for case in cases:
        await _kill_executor(ground, case)
    await ground.replace_executor()


async def _kill_executor(ground: Ground, case: Case) -> None:
    settings = {} if case.sweep is None else armed_for(case.sweep)
    armed = await ground.system.start_executor(wait=False, **settings, **case.armed)
    ground.armed = [armed]
    await _ready_or_dead(armed)

    await _dies(armed, lambda: _ask_executor(ground, case, armed.http_url), case)


async def _ask_executor(ground: Ground, case: Case, url: str) -> None:
    match case.point:
        case CrashPoint.SWEPT:
            assert case.sweep is not None
            await SWEEPS[case.sweep](ground)
        case CrashPoint.WEBHOOKS_CLAIMED | CrashPoint.WEBHOOK_POSTED:
            await call_back_something(ground)
        case CrashPoint.CANCELLATION_DECIDED:
            await cancel_something(ground, url)
        case CrashPoint.ACTIONS_PUT:
            await resume_something(ground, url)
        case CrashPoint.DEAD_LETTERS_SENT | CrashPoint.DEAD_LETTERS_STORED:
            await replay_something(ground, url)
        case _:
            await send_wave(ground.client, url)


async def _kill_workers(ground: Ground, cases: Sequence[Case]) -> None:
    """Let the armed workers share the work with the one that stays."""
    executor = ground.executor or await ground.replace_executor()
    ground.armed = [await ground.system.start_worker(ACTIONS, **case.armed) for case in cases]
    for armed, case in zip(ground.armed, cases, strict=True):
        await _dies(armed, lambda: send_wave(ground.client, executor.http_url), case)


async def _kill_draining_workers(ground: Ground, cases: Sequence[Case]) -> None:
    """Let each armed worker drain while it runs what will not end in time."""
    if ground.executor is None:
        await ground.replace_executor()
    for case in cases:
        armed = await ground.system.start_worker(ACTIONS, TURNSTILE_DRAIN_TIMEOUT="100ms", **case.armed)
        ground.armed = [armed]
        gate = ground.system.folder / f"gate {case.name}"
        gated = {"action_ref": "crash.gated", "parameters": {"gate": str(gate)}}

        async def holds_enough(armed: Service = armed, times: int = case.times) -> bool:
            return bool(await ground.connection.fetchval(_HELD, armed.pid) >= times)

        # The one that stays gets every second of them.
        await ground.client.publish(*[gated] * 2 * (case.times + 1))
        await until(holds_enough, f"{case.name}: it runs enough", deadline_seconds=_DEADLINE_SECONDS)
        armed.signal(signal.SIGTERM)
        await _dies(armed, _ask_for_nothing, case)
        gate.touch()


async def _ready_or_dead(armed: Service) -> None:
    """Wait until it serves: it may come to its point with what the one before it left."""
    try:
        await armed.ready()
    except AssertionError:
        if armed.process.returncode is None:
            raise


async def _dies(armed: Service, ask: Callable[[], Awaitable[None]], case: Case) -> None:
    """Ask again and again until the armed process has killed itself."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while armed.process.returncode is None:
        assert asyncio.get_running_loop().time() < deadline, f"nobody came to {case.name}"
        await ask()
        with suppress(TimeoutError):
            await asyncio.wait_for(armed.process.wait(), _PAUSE_SECONDS)
    assert armed.process.returncode == -signal.SIGKILL, armed.log.read_text()[-4000:]


async def _ask_for_nothing() -> None:
    pass
