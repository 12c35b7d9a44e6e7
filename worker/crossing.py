"""Calls into the event loop of another thread, many with one wake-up.

In: calls from any thread. Out: the same calls, in order, in that loop. Waking a loop costs a system call and
a switch of threads, so calls that come before the loop has woken share one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Crossing:
    """The way into one event loop."""

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
