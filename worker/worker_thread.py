"""The worker's own thread: protocol, lease and broker in one event loop, beside that of user code.

Why a thread: a function that blocks the main loop for longer than the lease must not cost the lease, nor the
answers to a recall or a cancel. The core was proven as code of one thread. So it has one lock, which its loop
holds except while it waits (`SharedLoop`): the end of a run is noted by the thread in which it ran, and the
next run starts there, without a switch of threads between them. If this thread fails, the process ends at
once: nothing else would stop the runs when the lease ends (P6).
"""

import asyncio
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

from turnstile.common.lifecycle import end_process

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
InWorker = Callable[..., object]
"""Calls a function with arguments between two steps of the worker's loop, from any thread."""

_JOIN_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01


class _LendingSelector(selectors.DefaultSelector):
    """Releases a lock while it waits."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self._lock = lock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._lock.release()
        try:
            return super().select(timeout)
        finally:
            self._lock.acquire()


class SharedLoop(asyncio.SelectorEventLoop):
    """An event loop to which other threads add steps while it waits: all code of it has one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._has_more = False
        super().__init__(_LendingSelector(self._lock))

    def call_between(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` now, in the caller's thread, between two steps of the loop.

        It must not await, and returns at once. What it schedules in this loop wakes the loop.
        """
        with self._lock:
            before, self._has_more = self._has_more, False
            try:
                function(*args)
            finally:
                if self._has_more:
                    with suppress(RuntimeError):
                        self.call_soon_threadsafe(_nothing)
                self._has_more = self._has_more or before

    def run_forever(self) -> None:
        """Run until it is stopped."""
        with self._lock:
            super().run_forever()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a call."""
        self._has_more = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a call at an instant."""
        self._has_more = True
        return super().call_at(when, callback, *args, context=context)


def _nothing() -> None:
    pass


class Crossing:
    """Calls from any thread into one event loop, in order, many with one wake-up.

    Waking a loop costs a system call and a switch of threads; calls before the loop has woken share one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_waking = False

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have `function(*args)` called in the loop; it must not raise. A closed loop calls nothing."""
        self._calls.append((function, args))
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # First: what is added from now on wakes the loop again, or is seen below.
        self._is_waking = False
        calls = self._calls
        for _ in range(len(calls)):
            function, args = calls.popleft()
            function(*args)
        if calls and not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._run)


class WorkerThread(Generic[T]):
    """Runs one coroutine in a thread; create it in the main loop."""

    def __init__(self, main: Callable[[InWorker], Coroutine[Any, Any, T]]) -> None:
        """Give `main` what calls into the thread's loop."""
        self._main = main
        self._loop = SharedLoop()
        self._task: asyncio.Task[T] | None = None
        self._to_main = Crossing(asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """What the coroutine returned."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` between two steps of the thread's loop."""
        self._loop.call_between(function, *args)

    async def abort(self) -> None:
        """Cancel the coroutine, unless it has ended, and wait for the thread, for a while."""
        self.call(self._cancel)
        clock = asyncio.get_running_loop().time
        until = clock() + _JOIN_SECONDS
        # Not by a thread of the pool: user code may occupy all of them.
        while self._thread.is_alive() and clock() < until:  # noqa: ASYNC110  (no event of the thread's end)
            await asyncio.sleep(_POLL_SECONDS)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        ended_normally = False
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
                self._to_main.call(self._end, runner.run(self._serve()))
            ended_normally = True
        finally:
            if not ended_normally:
                failure = sys.exc_info()
                end_process(lambda: sys.excepthook(*failure))

    async def _serve(self) -> T:
        self._task = task = asyncio.create_task(self._main(self.call), name="worker")
        return await task

    def _end(self, value: T) -> None:
        if not self.ended.done():
            self.ended.set_result(value)
