"""Hold up every admission: a test that owns the queues' rows decides when requests are recorded."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

_ADMITTING = """
SELECT count(*) = $1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%turnstile.admit(%'
"""


@asynccontextmanager
async def lines_locked(database_url: str) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """Lock all queues there are; lends a question: do so many sessions wait in order to admit?"""
    connection = await asyncpg.connect(database_url)

    async def admitting(count: int) -> bool:
        # A transaction looks at one copy of the activity until it drops it.
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return bool(await connection.fetchval(_ADMITTING, count))

    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM action_queue FOR UPDATE")
            yield admitting
    finally:
        await connection.close()
