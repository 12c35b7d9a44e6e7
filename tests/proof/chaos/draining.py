"""What is left to do after the last fault, read from the rows themselves.

In: the database, without a proxy. Out: what still stands in a line, holds a slot, or has not been told, until
there is none. Next: `checks`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import asyncpg

_LOOK_SECONDS: Final = 0.25
_LEFT: Final = """
SELECT (SELECT count(*) FROM waiting) AS waiting, (SELECT count(*) FROM delayed) AS delayed,
       (SELECT count(*) FROM slot) AS slots, (SELECT count(*) FROM untold_end) AS untold_ends,
       (SELECT count(*) FROM execution WHERE completed_at IS NULL) AS executions
"""
_DEFINITIONS: Final = "SELECT ref, max_concurrent, paused FROM action"


async def drained(
    connection: "asyncpg.Connection[asyncpg.Record]",
    limits: Mapping[str, int | None],
    restore: Callable[[], Awaitable[None]],
    *,
    patience_seconds: float,
) -> dict[str, int]:
    """Wait until nothing is left, or no longer than that; return how much of what is left.

    A change that was under way when its executor was paused may come after all, and late: `restore` is asked
    to undo it.
    """
    now = asyncio.get_running_loop().time
    began = now()
    while True:
        row = await connection.fetchrow(_LEFT)
        assert row is not None
        left = {name: count for name, count in row.items() if count}
        if not left or now() - began > patience_seconds:
            return left
        for action in await connection.fetch(_DEFINITIONS):
            if action["paused"] or action["max_concurrent"] != limits[action["ref"]]:
                await restore()
                break
        await asyncio.sleep(_LOOK_SECONDS)
