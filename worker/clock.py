"""The clock of leases: the port `Clock` of the core."""

import asyncio
import time


def clock() -> float:
    """Return seconds of CLOCK_BOOTTIME, which also counts while the process is stopped or the machine sleeps.

    Where it does not exist: of the monotonic clock. The supervisor process has the same clock.
    """
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class BootClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Return the present instant of `clock`."""
        return clock()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until `event` is set, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
