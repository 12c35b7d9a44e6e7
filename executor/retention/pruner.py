"""Prunes ended executions, workers that are gone, old changes of actions and settled webhooks.

In: a tick of the watchdog. Out: how many rows are gone. In small batches, each a transaction of its own, with
a rest between them that is longer than the batch: pruning never takes more than a share of one connection.
All replicas try and one prunes at a time; each remembers where it was, so nothing is read twice in a round.
"""

import time
from asyncio import sleep
from typing import Final

from common.database import Database
from executor.settings import ExecutorSettings

_ROWS_MAX: Final = 500
"""Rows looked at in one transaction."""
_REST_TIMES: Final = 4
"""The rest after a batch, in times of what the batch took."""
_BATCHES_MAX: Final = 200
"""Batches in one sweep: then the next one is due at once."""
_LATE_COPY_SECONDS: Final = 600.0
"""Whatever is to be kept: so long after its end an execution can still be named by a copy of its messages."""


class Pruner:
    """The sweeps over what is no longer wanted."""

    def __init__(
        self, database: Database, settings: ExecutorSettings, *, late_copy_seconds: float = _LATE_COPY_SECONDS
    ) -> None:
        self._database = database
        self._settings = settings
        self._late_copy_seconds = late_copy_seconds
        self._action_id = 0
        self._after_id = 0

    async def prune_executions(self) -> int:
        """Go on through the record until a round is done, or for a while."""
        pruned = 0
        for _ in range(_BATCHES_MAX):
            began_at = time.monotonic()
            batch = await self._prune_batch()
            pruned += batch or 0
            if batch is None or not self._action_id:
                break
            await sleep((time.monotonic() - began_at) * _REST_TIMES)
        return pruned

    async def prune_workers(self) -> int:
        """Forget workers that have been gone for long."""
        count: int = await self._database.fetchval(
            "SELECT turnstile.prune_workers($1, $2)", self._settings.retention_workers, _ROWS_MAX
        )
        return count

    async def prune_changes(self) -> int:
        """Forget old changes of actions."""
        count: int = await self._database.fetchval(
            "SELECT turnstile.prune_changes($1, $2)", self._settings.retention_changes, _ROWS_MAX
        )
        return count

    async def clean_webhooks(self) -> int:
        """Forget webhooks that were delivered or given up long ago."""
        count: int = await self._database.fetchval(
            "SELECT turnstile.clean_webhooks($1, $2)", self._settings.webhook_keep, _ROWS_MAX
        )
        return count

    async def _prune_batch(self) -> int | None:
        """Return how many are gone, or None while another replica prunes."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.prune($1, $2, $3, $4, $5, $6)",
            self._action_id,
            self._after_id,
            self._settings.retention_age,
            self._settings.retention_count,
            self._late_copy_seconds,
            _ROWS_MAX,
        )
        assert row is not None
        self._action_id, self._after_id = row["next_action_id"], row["next_id"]
        pruned: int | None = row["pruned"]
        return pruned
