"""Bounds the concurrent reads of one executor, and lends the connections they run on (P9).

In: statements. Out: their rows, or a connection whose statements all see the same rows.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Overloaded

if TYPE_CHECKING:
    from turnstile.common.database import Connection

    Row: TypeAlias = asyncpg.Record

_CONCURRENT_MAX: Final = 2
_WAIT_SECONDS: Final = 10.0


class ReadLimiter:
    """Bounds the concurrent reads of one executor, so that connections are left for the work itself (P9)."""

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


class LimitedReader:
    """Reads rows, within the limiter of its executor."""

    def __init__(self, database: Database, limiter: ReadLimiter) -> None:
        self._database = database
        self._limiter = limiter

    async def _rows(self, text: str, *arguments: object) -> "Sequence[Row]":
        async with self._limiter.permit():
            return await self._database.fetch(text, *arguments)

    async def _row(self, text: str, *arguments: object) -> "Row | None":
        async with self._limiter.permit():
            return await self._database.fetchrow(text, *arguments)

    @asynccontextmanager
    async def snapshot(self, planning: str = "") -> "AsyncIterator[Connection]":
        """Lend a connection on which all statements see the same rows, each planned for its values.

        `planning`: further settings, which may change that.

        Tables are read by index only: an old snapshot keeps the deleted rows of the live tables (P15).
        """
        async with self._limiter.permit(), self._database.transaction() as connection:
            await connection.execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
                "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off;"
                f"SET LOCAL jit = off; {planning}"
            )
            yield connection
