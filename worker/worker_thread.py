"""The worker's own thread: protocol, lease and broker in one event loop, beside that of user code.

Why a thread: a function that blocks the main loop for longer than the lease must not cost the lease, nor the
answers to a recall or a cancel, which belong to the thread that owns the list of what has not started. Why
the whole core in it and not the lease alone: it was proven as code of one thread, and so it needs no locks.
It costs a hand-over between the threads at the start and at the end of each run (`Crossing`). If this thread
fails, the process ends at once: nothing else would stop the runs when the lease ends (P6).
"""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from turnstile.common.lifecycle import end_process

T = TypeVar("T")

_JOIN_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01


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

    def __init__(self, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._main = main
        self._loop = _new_loop()
        self._task: asyncio.Task[T] | None = None
        self._to_main = Crossing(asyncio.get_running_loop())
        self._crossing = Crossing(self._loop)
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """What the coroutine returned."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have `function(*args)` called in the thread's loop, in order; it must not raise."""
        self._crossing.call(function, *args)

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
        self._task = task = asyncio.create_task(self._main(), name="worker")
        return await task

    def _end(self, value: T) -> None:
        if not self.ended.done():
            self.ended.set_result(value)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
