"""A few readings at a time: however many people look, connections are left for the work itself (P9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from turnstile.common.domain.errors import Overloaded

_READINGS_MAX: Final = 2
_WAIT_SECONDS: Final = 10.0


class ReadingTurns:
    """Shared by all who read for people."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_READINGS_MAX)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it; raises Overloaded when none comes in time."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Overloaded("too many readings at once") from None
        try:
            yield
        finally:
            self._free.release()
