"""Operating system processes: each owns its tasks, and can be paused, slowed down, killed and started again.

The product reaches the world through ports only, and each asynchronous call of a port passes through its
process: `enter` before it takes effect, `answer` after it did. A trap pauses or kills the process at exactly
that point. A paused process runs nothing, and its clock goes on. A killed process never runs again, not even
what it would do in a `finally`; what it had sent is under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from random import Random
from typing import Any, Final, Literal, overload

from tests.proof.simulation.loop import SimulatedLoop, Step

WALL: Final = 1_700_000_000.0
"""Seconds since 1970 at the beginning of the world."""
_CLOSINGS_MAX: Final = 20
"""How often a coroutine may await in what it does at its end."""


class Killed(BaseException):
    """The process does not live any more: a port refuses."""


class State(IntEnum):
    RUNNING = 0
    PAUSED = 1
    DEAD = 2


@dataclass(slots=True)
class Trap:
    """Pauses or kills a process at its next call but `calls`, before or after the call takes effect."""

    calls: int
    is_after: bool
    kind: Literal["pause", "kill"]
    spring: Callable[[], None]
    """Called when it springs; pauses or kills."""


PROCESS: Final[ContextVar["Process | None"]] = ContextVar("PROCESS", default=None)


class Processes:
    """The gate of the loop: which callbacks run."""

    def holds(self, step: Step) -> bool:
        process = step[0].get(PROCESS)
        if process is None or process.state is State.RUNNING:
            return False
        if process.state is State.PAUSED:
            process.held.append(step)
        return True

    def adopt(self, task: "asyncio.Task[Any]", context: Context) -> None:
        process = context.get(PROCESS)
        if process is not None:
            process.own(task)


class Process:
    """One process, from its start to its end; a restarted one is a new process."""

    def __init__(self, loop: SimulatedLoop, random: Random, name: str, *, boot_offset: float = 0.0) -> None:
        self.loop = loop
        self.random = random
        self.name = name
        self.state = State.RUNNING
        self.held: list[Step] = []
        self.boot_offset = boot_offset
        """The instant of this host's monotonic clock at the beginning of the world."""
        self.clock_rate = 1.0
        """How many seconds this host's clocks count in one."""
        self.wall_offset = 0.0
        """How far this host's wall clock is ahead of the true time."""
        self.slowness = 0.0
        """Each call takes up to so many seconds longer."""
        self.is_hindered = False
        """Its next call must `enter`: it does not run, or a trap is set."""
        self.paused_at = 0.0
        self.at_death: list[Callable[[], None]] = []
        """What the kernel does: close connections, kill children."""
        self.at_pause: list[Callable[[], None]] = []
        self.at_resume: list[Callable[[], None]] = []
        self.outcomes: dict[str, deque[Any]] = {}
        """What goes wrong with the next calls, and for how many seconds, by the name of the call."""
        self.at_outcome: Callable[[str, float], None] = lambda call, seconds: None
        """Called when a call goes wrong so."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._trap: Trap | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 64
        self._resumed: list[asyncio.Future[None]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._wait_until = inf
        self._looks_at = inf
        """When it is seen next whether a wait is over: one callback serves many short waits."""
        self._has_arrival = False
        self.at_rest: Callable[[], None] = lambda: None
        """Called when it begins to wait for something to arrive."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.name.lower()}>"

    # What runs.

    def start(self, main: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as a task of this process, and all tasks that it creates."""
        return self.loop.create_task(main, context=self.context.copy())

    def own(self, task: "asyncio.Task[Any]") -> None:
        """Note a task of this process."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = 2 * len(self._tasks) + 64

    def pause(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state = State.PAUSED
            self.paused_at = self.loop.now
            self.is_hindered = True
            self.loop.gating += 1
            for action in self.at_pause:
                action()

    def resume(self) -> None:
        """SIGCONT."""
        if self.state is not State.PAUSED:
            return
        self.state = State.RUNNING
        self.is_hindered = self._trap is not None
        self.loop.gating -= 1
        for action in list(self.at_resume):
            action()
        held, self.held = self.held, []
        self.loop.requeue(held)
        for future in self._resumed:
            if not future.done():
                future.set_result(None)
        self._resumed.clear()

    def kill(self) -> None:
        """SIGKILL."""
        if self.state is State.DEAD:
            return
        if self.state is State.RUNNING:
            self.loop.gating += 1
        self.state = State.DEAD
        self.is_hindered = True
        self.held.clear()
        for action in self.at_death:
            action()
        # The task that runs at this moment cannot be closed before it awaits.
        self.loop.after(0.0, self._vanish)

    def _vanish(self) -> None:
        self.bury()
        # Nothing of it is due from the next jump on.
        self.loop.after(0.0, self._vanished)

    def _vanished(self) -> None:
        self.loop.gating -= 1

    def bury(self) -> None:
        """Close what is suspended, so that nothing of it is left; its ports refuse everything."""
        while self._tasks:
            task = self._tasks.pop()
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(_CLOSINGS_MAX):
                try:
                    self.context.copy().run(task.get_coro().close)
                except RuntimeError:
                    continue
                except BaseException:  # noqa: BLE001 - whatever a dead process raises is nothing
                    break
                break

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD

    # Calls of ports.

    def check(self) -> None:
        """Refuse a synchronous call of a dead process."""
        if self.state is State.DEAD:
            raise Killed

    def arm(self, trap: Trap) -> None:
        """Set the trap of this process; it has one at most."""
        self._trap = trap
        self.is_hindered = True

    def next_outcome(self, call: str) -> Any:
        """Return what goes wrong with this call; None: nothing."""
        planned = self.outcomes.get(call)
        if not planned:
            return None
        outcome = planned.popleft()
        self.at_outcome(call, outcome[1])
        return outcome

    async def enter(self) -> None:
        """A call of a hindered process begins: it takes effect after this returns."""
        if self.state is State.DEAD:
            raise Killed
        trap = self._trap
        if trap is not None:
            trap.calls -= 1
            if trap.calls < 0 and not trap.is_after:
                self._disarm()
                trap.spring()
        while self.state is not State.RUNNING:
            future: asyncio.Future[None] = self.loop.create_future()
            self._resumed.append(future)
            await future

    def _disarm(self) -> None:
        self._trap = None
        self.is_hindered = self.state is not State.RUNNING

    def answer(self, future: "asyncio.Future[Any]", value: Any) -> None:
        """The answer to a call has arrived; an exception is raised there."""
        if self.state is State.DEAD:
            return
        trap = self._trap
        if trap is not None and trap.calls < 0:
            self._disarm()
            trap.spring()
        if self.slowness:
            self.loop.after(self.random.random() * self.slowness, self._deliver, future, value)
        else:
            self._deliver(future, value)

    def _deliver(self, future: "asyncio.Future[Any]", value: Any) -> None:
        if self.state is State.DEAD or future.done():
            return
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)

    # Its clock.

    def monotonic(self) -> float:
        return self.loop.now * self.clock_rate + self.boot_offset

    async def sleep(self, seconds: float) -> None:
        if self.is_hindered:
            await self.enter()
        future: asyncio.Future[None] = self.loop.create_future()
        self.loop.after(max(seconds, 0.0) / self.clock_rate, self.answer, future, None)
        await future

    async def wait(self, seconds: float) -> None:
        """Wait until something arrives, or has arrived since the last wait; at most so long."""
        if self.is_hindered:
            await self.enter()
        future: asyncio.Future[None] = self.loop.create_future()
        if self._has_arrival:
            self._has_arrival = False
            self.loop.after(0.0, self.answer, future, None)
        else:
            self._waiter = future
            self._wait_until = self.loop.now + seconds / self.clock_rate
            self._look_later()
            self.at_rest()
        await future

    def _look_later(self) -> None:
        if self._wait_until < self._looks_at:
            self._looks_at = self._wait_until
            self.loop.at(self._looks_at, self._look)

    def _look(self) -> None:
        """End a wait whose time is over."""
        now = self.loop.now
        if now >= self._looks_at:
            self._looks_at = inf
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if now >= self._wait_until:
                self._waiter = None
                self.answer(waiter, None)
            else:
                self._look_later()

    def release(self, future: "asyncio.Future[Any]") -> None:
        """End a wait for something within the process, as a timer of its own does."""
        if self.state is not State.DEAD and not future.done():
            future.set_result(None)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for something to arrive."""
        return self._waiter is not None and not self._waiter.done()

    def wake(self) -> None:
        """Something has arrived for this process."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._has_arrival = True
        else:
            self._waiter = None
            self.answer(waiter, None)


class SimulatedClock:
    """The clock of a process, as a port of the leader and of the worker."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.monotonic = process.monotonic
        self.sleep = process.sleep

    def wall(self) -> float:
        process = self._process
        return WALL + process.loop.now * process.clock_rate + process.wall_offset

    @overload
    async def wait(self, event: float) -> None: ...
    @overload
    async def wait(self, event: asyncio.Event, seconds: float) -> None: ...
    async def wait(self, event: asyncio.Event | float, seconds: float = 0.0) -> None:
        """Wait for an event, or for anything that arrives for the process."""
        process = self._process
        if not isinstance(event, asyncio.Event):
            await process.wait(event)
            return
        if process.is_hindered:
            await process.enter()
        if event.is_set():
            return
        loop = process.loop
        future: asyncio.Future[Any] = loop.create_future()
        # As `Event.wait`, whose time-out would cost a task's cancellation.
        waiters = event._waiters
        waiters.append(future)
        loop.after(max(seconds, 0.0) / process.clock_rate, process.release, future)
        try:
            await future
        finally:
            waiters.remove(future)
