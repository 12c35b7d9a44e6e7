"""Deletes ended executions that are too old or too many, with their attempts, logs and progress.

In: how long and how many are kept. Out: how many were deleted. Works in small batches, each a transaction of
its own, with a pause after each that is longer than the batch: pruning uses only a share of one connection.
All executors try, and one prunes at a time. An action's own setting replaces the installation's.
"""

import time
from asyncio import sleep
from typing import Final

from turnstile.common.database import Database
from turnstile.executor.sql import statements

_STATEMENTS: Final = statements("history/retention.sql")
_ROWS_MAX: Final = 500
"""Executions read in one transaction."""
_PAUSE_FACTOR: Final = 4
"""The pause after a batch, in multiples of its duration."""
_BATCHES_MAX: Final = 200
"""Batches in one call; the next call continues."""
_LATE_COPY_SECONDS: Final = 600.0


class ExecutionPruner:
    """Remembers where it stopped, so nothing is read twice in a round over all actions."""

    def __init__(
        self,
        database: Database,
        *,
        keep_seconds: float | None,
        keep_count: int | None,
        late_copy_seconds: float = _LATE_COPY_SECONDS,
    ) -> None:
        """None: without a bound. `late_copy_seconds`: what ended more recently is kept in any case."""
        self._database = database
        self._keep_seconds, self._keep_count = keep_seconds, keep_count
        self._late_copy_seconds = late_copy_seconds
        self._action = ""
        self._after_id = 0
        self._action_keep_seconds: float | None = None
        self._has_old = False
        self._excess_up_to: int | None = None

    async def prune(self) -> int:
        """Delete for a while, or until a round over all actions is done; return how many were deleted.

        Raises Unavailable; the next call continues.
        """
        total = 0
        for _ in range(_BATCHES_MAX):
            began_at = time.monotonic()
            if not self._after_id and not await self._next_action():
                break
            if self._has_old or self._excess_up_to is not None:
                total += await self._batch()
            await sleep((time.monotonic() - began_at) * _PAUSE_FACTOR)
        return total

    async def _next_action(self) -> bool:
        """Go on with the next action; False: the round is done, and the next one begins."""
        row = await self._database.fetchrow(
            _STATEMENTS["next_action"], self._action, self._keep_seconds, self._keep_count
        )
        if row is None:
            self._action = ""
            return False
        self._action, self._action_keep_seconds = row["action_ref"], row["keep_seconds"]
        self._has_old, self._excess_up_to = row["has_old"], None
        if row["keep_count"] is not None:
            self._excess_up_to = await self._database.fetchval(
                _STATEMENTS["excess_up_to"], self._action, row["keep_count"]
            )
        return True

    async def _batch(self) -> int:
        async with self._database.transaction() as connection:
            if not await connection.fetchval(_STATEMENTS["try_turn"]):
                self._after_id = 0
                return 0
            row = await connection.fetchrow(
                _STATEMENTS["prune"],
                self._action,
                self._after_id,
                self._action_keep_seconds,
                self._excess_up_to,
                self._late_copy_seconds,
                _ROWS_MAX,
            )
        assert row is not None
        self._after_id = row["next_id"] or 0
        return int(row["pruned"])
