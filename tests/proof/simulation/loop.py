"""An event loop whose time is simulated: when nothing is ready, it jumps to the next instant of its timeline.

Tasks of asyncio run in it unchanged. The world itself is made of plain callbacks (`at`, `after`), which cost
less than tasks and belong to no process. The same callbacks in the same order always give the same run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, Final, Protocol

STEPS_AT_ONE_INSTANT_MAX: Final = 500_000
"""More than this is a loop that never waits."""


class Hang(Exception):
    """Nothing is scheduled any more, or everything happens at one instant."""


class Gate(Protocol):
    """Decides about callbacks of processes that do not run."""

    def holds(self, handle: "SimulatedHandle") -> bool:
        """Keep or drop a callback that is due; False: it may run."""

    def adopt(self, task: "asyncio.Task[Any]", context: Context) -> None:
        """Note a new task."""


class SimulatedHandle(asyncio.TimerHandle):
    """A callback of asyncio; made with fewer steps than its base class needs."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:  # fmt: skip
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._scheduled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()

    def run(self) -> None:
        self._context.run(self._callback, *self._args)


def _nothing() -> None:
    pass


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time stands still while callbacks run. A failure in a callback of the world ends the run."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.now = 0.0
        """Seconds since the beginning of the world: the true time, which no process can read."""
        self.gate = gate
        self.is_gating = False
        """Whether some process does not run."""
        self.steps = 0
        self._steps_then = 0
        self._number = 0
        self._due: deque[SimulatedHandle] = deque()
        self._timeline: list[tuple[float, int, Callable[..., object] | None, Any]] = []
        self._is_stopped = False

    # The world's own callbacks.

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back at an instant; at the same instant in the order of these calls."""
        self._number += 1
        heappush(self._timeline, (max(when, self.now), self._number, callback, args))

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back after a time."""
        self._number += 1
        heappush(self._timeline, (self.now + seconds, self._number, callback, args))

    def run_world(self) -> None:
        """Run until `stop_world`. Raises Hang."""
        self._is_stopped = False
        asyncio._set_running_loop(self)
        try:
            while not self._is_stopped:
                self._run_once()
        finally:
            asyncio._set_running_loop(None)

    def stop_world(self) -> None:
        """Let `run_world` return."""
        self._is_stopped = True

    def clear(self) -> None:
        """Forget everything that is scheduled: the world is over."""
        self._due.clear()
        self._timeline.clear()

    def requeue(self, handles: list[SimulatedHandle]) -> None:
        """Let callbacks that were held run now."""
        self._due.extend(handles)

    # What asyncio calls.

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        handle = SimulatedHandle(self.now, callback, args, self, context)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        handle = SimulatedHandle(when, callback, args, self, context)
        self._number += 1
        heappush(self._timeline, (max(when, self.now), self._number, None, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self.gate is not None:
            self.gate.adopt(task, copy_context() if context is None else context)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def _run_once(self) -> None:
        """Go to the next instant if nothing is due, then run what is due."""
        due = self._due
        while not due:
            self._jump()
            if self._is_stopped:
                return
        count = len(due)
        self.steps += count
        if self.steps - self._steps_then > STEPS_AT_ONE_INSTANT_MAX:
            raise Hang(f"more than {STEPS_AT_ONE_INSTANT_MAX} steps at {self.now:.6f} s, last {due[0]!r}")
        if self.is_gating and self.gate is not None:
            holds = self.gate.holds
            for _ in range(count):
                handle = due.popleft()
                if not handle._cancelled and not holds(handle):
                    handle._context.run(handle._callback, *handle._args)
            return
        for _ in range(count):
            handle = due.popleft()
            if not handle._cancelled:
                handle._context.run(handle._callback, *handle._args)
                if self.is_gating:
                    return

    def _jump(self) -> None:
        """Run callbacks of the world, up to the first one that makes a callback of asyncio due."""
        timeline, due = self._timeline, self._due
        while not due and not self._is_stopped:
            if not timeline:
                raise Hang(f"nothing is scheduled after {self.now:.6f} s")
            when, _, callback, what = heappop(timeline)
            if when > self.now:
                self.now = when
                self._steps_then = self.steps
            self.steps += 1
            if callback is not None:
                callback(*what)
            elif not what._cancelled:
                due.append(what)
            if self.steps - self._steps_then > STEPS_AT_ONE_INSTANT_MAX:
                raise Hang(
                    f"more than {STEPS_AT_ONE_INSTANT_MAX} steps at {self.now:.6f} s, last {callback!r}"
                )
