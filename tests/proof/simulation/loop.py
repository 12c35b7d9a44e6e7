"""An event loop whose time is simulated: when nothing is ready, it jumps to the next instant of its timeline.

Tasks of asyncio run in it unchanged. The world itself is made of plain callbacks (`at`, `after`), which cost
less than tasks and belong to no process. The same callbacks in the same order always give the same run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeAlias

STEPS_AT_ONE_INSTANT_MAX: Final = 500_000
"""More than this is a loop that never waits."""

Step: TypeAlias = tuple[Context, Callable[..., object], tuple[Any, ...]]
"""A callback of asyncio that is due."""


class Hang(Exception):
    """Nothing is scheduled any more, or everything happens at one instant."""


class Gate(Protocol):
    """Decides about callbacks of processes that do not run."""

    def holds(self, step: Step) -> bool:
        """Keep or drop a callback that is due; False: it may run."""

    def adopt(self, task: "asyncio.Task[Any]", context: Context) -> None:
        """Note a new task."""


class SimulatedHandle(asyncio.TimerHandle):
    """A callback of asyncio that may be cancelled; made with fewer steps than its base class needs."""

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
        self._callback(*self._args)


def _nothing() -> None:
    pass


class Timeouts:
    """Time-outs of one length, of which nearly none passes: only the first is on the timeline."""

    __slots__ = ("_is_set", "_loop", "_seconds", "_waiting")

    def __init__(self, loop: "SimulatedLoop", seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._waiting: deque[tuple[float, asyncio.Future[Any], Callable[..., object]]] = deque()
        self._is_set = False

    def watch(self, future: "asyncio.Future[Any]", callback: Callable[..., object]) -> None:
        """Call back with the future if it is not done in time."""
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        waiting.append((self._loop.now + self._seconds, future, callback))
        if not self._is_set:
            self._is_set = True
            self._loop.at(waiting[0][0], self._pass)

    def _pass(self) -> None:
        waiting, now = self._waiting, self._loop.now
        while waiting and (waiting[0][0] <= now or waiting[0][1].done()):
            _, future, callback = waiting.popleft()
            if not future.done():
                callback(future)
        self._is_set = bool(waiting)
        if waiting:
            self._loop.at(waiting[0][0], self._pass)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time stands still while callbacks run. A failure in a callback of the world ends the run."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.now = 0.0
        """Seconds since the beginning of the world: the true time, which no process can read."""
        self.gate = gate
        self.gating = 0
        """How many processes do not run and may have callbacks that are due."""
        self.steps = 0
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self._number = 0
        self._due: deque[Step] = deque()
        self._timeline: list[tuple[float, int, Callable[..., object], Any]] = []
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
            self._run()
        finally:
            asyncio._set_running_loop(None)

    def stop_world(self) -> None:
        """Let `run_world` return."""
        self._is_stopped = True

    def clear(self) -> None:
        """Forget everything that is scheduled: the world is over."""
        self._due.clear()
        self._timeline.clear()

    def requeue(self, steps: list[Step]) -> None:
        """Let callbacks that were held run now."""
        self._due.extend(steps)

    # What asyncio calls.

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle | None:
        if context is not None:
            # From a task or a future, which cannot cancel it.
            self._due.append((context, callback, args))
            return None
        handle = SimulatedHandle(self.now, callback, args, self, None)
        self._due.append((handle._context, handle.run, ()))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        handle = SimulatedHandle(when, callback, args, self, context)
        self.at(when, self._elapsed, handle)
        return handle

    def _elapsed(self, handle: SimulatedHandle) -> None:
        """The time of a callback of asyncio has come: it runs unless its process does not."""
        if not handle._cancelled:
            step: Step = (handle._context, handle.run, ())
            if self.gate is None or not self.gate.holds(step):
                self._due.append(step)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        if context is None:
            context = copy_context()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self.gate is not None:
            self.gate.adopt(task, context)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def _run(self) -> None:
        """Run what is due; if nothing is, go to the next instant, and run the world's callback of it."""
        due, timeline = self._due, self._timeline
        steps, steps_max = self.steps, self.steps + STEPS_AT_ONE_INSTANT_MAX
        callback: Callable[..., object] = _nothing
        try:
            while not self._is_stopped:
                steps += 1
                if due:
                    if self.gating and self.gate is not None and self.gate.holds(due[0]):
                        due.popleft()
                        continue
                    context, callback, args = due.popleft()
                    context.run(callback, *args)
                elif timeline:
                    when, _, callback, args = heappop(timeline)
                    if when > self.now:
                        self.now = when
                        steps_max = steps + STEPS_AT_ONE_INSTANT_MAX
                    callback(*args)
                else:
                    raise Hang(f"nothing is scheduled after {self.now:.6f} s")
                if steps > steps_max:
                    raise Hang(
                        f"more than {STEPS_AT_ONE_INSTANT_MAX} steps at {self.now:.6f} s, last {callback!r}"
                    )
        finally:
            self.steps = steps
