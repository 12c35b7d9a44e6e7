"""Prunes ended executions, queues of idle keys, gone workers, old changes, webhooks and dead letters.

In: a tick of the watchdog. Out: how many rows are gone. In small batches, each a transaction of its own, with
a rest between them that is longer than the batch: pruning never takes more than a share of one connection.
All replicas try and one prunes at a time; each remembers where it was, so nothing is read twice in a round.
"""

import logging
import time
from asyncio import sleep
from collections.abc import Awaitable, Callable
from typing import Final

from turnstile.common.database import Database
from turnstile.executor.metrics import DEAD_LETTERS_PRUNED, WEBHOOK_ATTEMPTS
from turnstile.executor.settings import ExecutorSettings

logger = logging.getLogger(__name__)

_ROWS_MAX: Final = 500
"""Rows looked at in one transaction."""
_REST_TIMES: Final = 4
"""The rest after a batch, in times of what the batch took."""
_BATCHES_MAX: Final = 200
"""Batches in one sweep; what they leave waits for the next one."""
_QUEUES_MAX: Final = 1000
_QUEUE_BATCHES_MAX: Final = 10
"""So many times as many queues in one sweep: with a tick of a second, a million within 17 minutes."""
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
        self._after_webhook_id = 0
        self._after_queue_id = 0
        self._began_at = time.monotonic()

    async def prune_executions(self) -> int:
        """Go on through the record until a round is done, or for a while."""
        return await _in_batches(self._prune_batch)

    async def delete_idle_queues(self) -> int:
        """Go on through the queues and delete those of idle keys, for a while.

        Begins when this process has run for as long as a key may be idle: executors of an older version,
        which know of no deleted queues, are gone by then.
        """
        idle_seconds = self._settings.retention_idle_keys
        if idle_seconds is None or time.monotonic() - self._began_at < idle_seconds:
            return 0

        async def batch() -> tuple[int, bool]:
            row = await self._database.fetchrow(
                "SELECT * FROM turnstile.delete_idle_queues($1, $2, $3)",
                self._after_queue_id,
                idle_seconds,
                _QUEUES_MAX,
            )
            assert row is not None
            self._after_queue_id = row["next_id"]
            return row["deleted"], self._after_queue_id != 0

        return await _in_batches(batch, batches_max=_QUEUE_BATCHES_MAX)

    async def prune_workers(self) -> int:
        """Forget workers that have been gone for long."""
        statement = "SELECT turnstile.prune_workers($1, $2)"
        return await self._forget(statement, self._settings.retention_workers)

    async def prune_changes(self) -> int:
        """Forget old changes of actions."""
        statement = "SELECT turnstile.prune_changes($1, $2)"
        return await self._forget(statement, self._settings.retention_changes)

    async def clean_webhooks(self) -> int:
        """Give up webhooks that are pending for too long; forget those that were settled long ago."""
        given_up = await _in_batches(self._give_up_batch)
        if given_up:
            WEBHOOK_ATTEMPTS.add("failed", count=given_up)
            logger.warning("webhooks_given_up", extra={"rows": given_up})
        statement = "SELECT turnstile.clean_webhooks($1, $2)"
        return given_up + await self._forget(statement, self._settings.webhook_keep)

    async def prune_dead_letters(self) -> int:
        """Delete dead letters that are too old, or too many; the oldest go first."""
        dropped = 0

        async def batch() -> tuple[int, bool]:
            nonlocal dropped
            counts = await self._prune_dead_letters()
            dropped += counts["count"] + counts["bytes"]
            pruned = sum(counts.values())
            return pruned, pruned == _ROWS_MAX

        pruned = await _in_batches(batch)
        if dropped:
            logger.warning("dead_letters_dropped", extra={"letters": dropped})
        return pruned

    async def _forget(self, statement: str, keep_seconds: float) -> int:
        async def batch() -> tuple[int, bool]:
            count: int = await self._database.fetchval(statement, keep_seconds, _ROWS_MAX)
            return count, count == _ROWS_MAX

        return await _in_batches(batch)

    async def _prune_dead_letters(self) -> dict[str, int]:
        """Delete a batch; return how many went for which reason. None where another replica prunes."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.prune_dead_letters($1, $2, $3, $4)",
            self._settings.retention_dead_letters,
            self._settings.retention_dead_letters_count,
            self._settings.retention_dead_letters_bytes,
            _ROWS_MAX,
        )
        assert row is not None
        counts = {reason: row[f"by_{reason}"] or 0 for reason in ("age", "count", "bytes")}
        for reason, count in counts.items():
            DEAD_LETTERS_PRUNED.add(reason, count=count)
        return counts

    async def _give_up_batch(self) -> tuple[int, bool]:
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.give_up_webhooks($1, $2, $3)",
            self._after_webhook_id,
            self._settings.webhook_age_max,
            _ROWS_MAX,
        )
        assert row is not None
        self._after_webhook_id = row["next_id"]
        return row["given_up"], self._after_webhook_id != 0

    async def _prune_batch(self) -> tuple[int, bool]:
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
        # Null: another replica prunes.
        return row["pruned"] or 0, row["pruned"] is not None and self._action_id != 0


async def _in_batches(
    batch: Callable[[], Awaitable[tuple[int, bool]]], *, batches_max: int = _BATCHES_MAX
) -> int:
    """Go on while there is more, or for a while; return how many rows it was."""
    total = 0
    for _ in range(batches_max):
        began_at = time.monotonic()
        count, has_more = await batch()
        total += count
        if not has_more:
            break
        await sleep((time.monotonic() - began_at) * _REST_TIMES)
    return total
