"""Bounds the concurrent reads for people, so that connections are left for the work itself (P9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from turnstile.common.domain.errors import Overloaded

_CONCURRENT_MAX: Final = 2
_WAIT_SECONDS: Final = 10.0


class ReadLimiter:
    """Shared by all readers of one executor."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_CONCURRENT_MAX)

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[None]:
        """Wait for a permit and hold it; raises Overloaded after the timeout."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Overloaded("too many reads at once") from None
        try:
            yield
        finally:
            self._free.release()
