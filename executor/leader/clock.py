"""The clock of the leader's process: counts while the machine sleeps, and ends a rest when something arrives.

In: `wake`, called in the loop by whatever received a message, a command or a question. It implements
`ports.Clock`.
"""

import asyncio
import time
from contextlib import suppress


class LeaderClock:
    """Instants in seconds; they mean nothing in another process after the machine was started again."""

    def __init__(self) -> None:
        self._has_arrived = asyncio.Event()

    def monotonic(self) -> float:
        """Return the present instant.

        A leader that was suspended with its machine must see that its time is over, so CLOCK_MONOTONIC, which
        stops then, would not do. It stands in where the system has no CLOCK_BOOTTIME.
        """
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except AttributeError:
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait, whatever arrives."""
        await asyncio.sleep(seconds)

    async def wait(self, seconds: float) -> None:
        """Wait until something has arrived since the last `wait` began to count, at most so long."""
        if not self._has_arrived.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_arrived.wait()
        self._has_arrived.clear()

    def wake(self) -> None:
        """End the present rest, or else the next one at once."""
        self._has_arrived.set()
