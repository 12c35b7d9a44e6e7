"""Ask, grace, kill: the one way in which a running attempt is made to end.

In: something that runs, a timeout, a `StopRequest` from the worker. Out: what it returned, or the `Stop` that
ended it. Once something was asked to stop, the stop is the answer, whatever it still returns: a half-done
result is never taken for a whole one. Next: `worker.runners.report`.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from turnstile.common.domain.durations import format_duration

AskKind = Literal["drain", "cancel", "lease_lost"]
StopKind = Literal["drain", "cancel", "lease_lost", "timeout"]

_STRENGTH: Final[dict[StopKind, int]] = {"drain": 0, "cancel": 1, "timeout": 1, "lease_lost": 2}
_AFTER_KILL_SECONDS: Final = 1.0
logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt is made to end."""

    kind: StopKind
    reason: str


class StopRequest:
    """How the worker asks one running attempt to stop; a stronger kind replaces a weaker one."""

    __slots__ = ("_asked", "_at_once", "stop")

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()
        self.stop: Stop | None = None

    def ask(self, kind: AskKind, reason: str) -> None:
        """Ask once or more often. After `lease_lost` there is no grace: another copy may start any moment."""
        self._note(Stop(kind=kind, reason=reason))
        self._asked.set()
        if kind == "lease_lost":
            self._at_once.set()

    def time_is_over(self, timeout_seconds: float) -> None:
        """Note that the timeout has passed."""
        allowed = format_duration(timeout_seconds)
        self._note(
            Stop(kind="timeout", reason=f"it ran longer than its timeout of {allowed} and was stopped")
        )

    def _note(self, stop: Stop) -> None:
        if self.stop is None or _STRENGTH[stop.kind] > _STRENGTH[self.stop.kind]:
            self.stop = stop

    async def asked(self) -> None:
        """Return once a stop is asked for."""
        await self._asked.wait()

    async def asked_at_once(self) -> None:
        """Return once there is no time for grace."""
        await self._at_once.wait()


class Stoppable(Protocol):
    """What runs: a task of the loop, a process group."""

    def ask(self, stop: Stop) -> None:
        """Tell it to end by itself; returns at once."""

    def kill(self) -> None:
        """End it; returns at once."""


class StoppableTask:
    """A task: both asking and killing cancel it, since a coroutine cannot be ended from outside."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

    def ask(self, stop: Stop) -> None:
        """Cancel it."""
        self._task.cancel(stop.reason)

    def kill(self) -> None:
        """Cancel it once more."""
        self._task.cancel()


async def run_until_stopped(
    work: asyncio.Task[T],
    running: Stoppable,
    *,
    stop: StopRequest,
    timeout_seconds: float | None,
    grace_seconds: float,
) -> T | Stop:
    """Return what `work` returns, or why it was stopped.

    `work` ends when `running` has ended; it must not raise. If it outlives even the kill, it is left behind
    with a warning. If this call is cancelled, `running` is killed.
    """
    asked = asyncio.create_task(stop.asked(), name=f"{work.get_name()}: stop")
    at_once = asyncio.create_task(stop.asked_at_once(), name=f"{work.get_name()}: stop at once")
    try:
        await asyncio.wait({work, asked}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if stop.stop is None:
            assert timeout_seconds is not None
            stop.time_is_over(timeout_seconds)
        assert stop.stop is not None
        running.ask(stop.stop)
        await asyncio.wait({work, at_once}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            running.kill()
            await asyncio.wait({work}, timeout=_AFTER_KILL_SECONDS)
        if not work.done():
            logger.warning("run_left_behind", extra={"run": work.get_name(), "reason": stop.stop.reason})
        return stop.stop
    finally:
        asked.cancel()
        at_once.cancel()
        if not work.done():
            running.kill()
