"""One trial: arm processes, submit until each has died at its crash point, replace them, drain, check.

In: an environment and `Case`s. Out: what is wrong with the whole history so far. A process that does not die
never came to its point: that fails the trial. Executors die one after the other, each while it heals what
the last one left; workers die side by side. Where the leader's process dies, its executor is killed too.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.proof.crash.actions import TALKING_SECONDS
from tests.proof.crash.environment import ACTIONS, Client, Environment, submit_everything
from tests.support.processes import Service
from turnstile.common.crash_points import VARIABLE, CrashPoint

_DEADLINE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.1
_LEADER_ENDED: Final = "leader_process_ended"
EXECUTOR: Final = frozenset(point for point in CrashPoint if point.startswith("executor."))
_OF_LEADER: Final = frozenset(point for point in EXECUTOR if point.startswith("executor.leader."))
_ONCE: Final = frozenset({CrashPoint.LEADERSHIP_TAKEN, CrashPoint.LEADERSHIP_LOADED})
"""Passed once in the life of a leader's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The point at which a process dies, and at which of its passages."""

    point: CrashPoint
    times: int

    @property
    def name(self) -> str:
        """The point and the number."""
        return f"{self.point}:{self.times}"

    @property
    def armed(self) -> dict[str, str]:
        """The environment of the process that will die."""
        return {VARIABLE: self.name}


def cases(times: int) -> list[Case]:
    """Return a case for each point."""
    return [Case(point=point, times=1 if point in _ONCE else times) for point in CrashPoint]


def groups(times: int) -> dict[str, list[Case]]:
    """Return the same cases, grouped so that one may die while it heals what another left."""
    kinds = {"leaders": _OF_LEADER, "executors": EXECUTOR - _OF_LEADER, "workers": set(CrashPoint) - EXECUTOR}
    return {kind: [case for case in cases(times) if case.point in points] for kind, points in kinds.items()}


async def tried(env: Environment, cases: Sequence[Case]) -> list[str]:
    """Carry out cases of one kind, and return what is wrong afterwards."""
    if cases[0].point in EXECUTOR:
        # Each armed executor is the only one, so that it does everything of its kind.
        for case in cases:
            await env.kill_executor()
            await _kill_executor(env, case)
        await env.replace_executor()
    else:
        await _kill_workers(env, cases)
    return [*await env.drain(), *await env.faults()]


async def _kill_executor(env: Environment, case: Case) -> None:
    armed = await env.system.start_executor(wait=False, **case.armed)
    if case.point not in _OF_LEADER:
        # It may be at its point already, by what the executor before it left.
        with suppress(AssertionError):
            await armed.ready()
    await _dies(
        armed, partial(_TRIGGERS.get(case.point, submit_everything), env.client, armed.http_url), case
    )
    await armed.kill()


async def _talk(client: Client, url: str) -> None:
    await client.publish({"action_ref": "crash.talking", "parameters": {"seconds": TALKING_SECONDS}})


async def _call_back(client: Client, url: str) -> None:
    """Submit with the URL of a receiver that does not exist."""
    await client.publish({"action_ref": "crash.free", "callback_url": "http://127.0.0.1:1/hook"})


async def _die(client: Client, url: str) -> None:
    await client.publish_dead_letter({"action_ref": "crash.free"})


async def _replay(client: Client, url: str) -> None:
    await _die(client, url)
    await client.replay_dead_letters(url)


_TRIGGERS: Final[Mapping[CrashPoint, Callable[[Client, str], Awaitable[None]]]] = {
    CrashPoint.REPORTS_WRITTEN: _talk,
    CrashPoint.WEBHOOKS_CLAIMED: _call_back,
    CrashPoint.WEBHOOK_POSTED: _call_back,
    CrashPoint.DEAD_LETTERS_STORED: _die,
    CrashPoint.DEAD_LETTERS_PUBLISHED: _replay,
}


async def _kill_workers(env: Environment, cases: Sequence[Case]) -> None:
    """Let the armed workers share the work with the one that stays."""
    executor = env.executor or await env.replace_executor()
    # One may die before it is ready.
    armed = [await env.system.launch_worker(ACTIONS, **case.armed) for case in cases]
    for each, case in zip(armed, cases, strict=True):
        await _dies(each, partial(submit_everything, env.client, executor.http_url), case)


async def _dies(armed: Service, trigger: Callable[[], Awaitable[None]], case: Case) -> None:
    """Repeat the trigger until the armed process has killed itself."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while not _has_died(armed, case):
        assert asyncio.get_running_loop().time() < deadline, f"no process came to {case.name}"
        await trigger()
        with suppress(TimeoutError):
            await asyncio.wait_for(armed.process.wait(), _PAUSE_SECONDS)
    if case.point not in _OF_LEADER:
        assert armed.process.returncode == -signal.SIGKILL, armed.log.read_text()[-4000:]


def _has_died(armed: Service, case: Case) -> bool:
    if case.point in _OF_LEADER:
        return _LEADER_ENDED in armed.log.read_text()
    return armed.process.returncode is not None
