"""Deletes old rows: ended executions, idle keys, gone workers, audit log, webhooks and dead letters.

In: a tick of the watchdog. Out: how many rows were deleted. Works in small batches, each a transaction of its
own, with a pause after each that is longer than the batch: pruning uses only a share of one connection. All
replicas try and one prunes at a time; each remembers its position, so nothing is read twice in a round.
Deleted executions are counted in `pruned_count`, so that the totals of a queue still add up.
"""

import logging
import time
from asyncio import sleep
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from turnstile.common.database import Database
from turnstile.executor.metrics import DEAD_LETTERS_PRUNED, WEBHOOK_ATTEMPTS
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.settings import ExecutorSettings

logger = logging.getLogger(__name__)

_ROWS_MAX: Final = 500
"""Rows read in one transaction."""
_PAUSE_FACTOR: Final = 4
"""The pause after a batch, in multiples of the batch's duration."""
_BATCHES_MAX: Final = 200
"""Batches in one sweep; the rest waits for the next sweep."""
_QUEUES_MAX: Final = 1000
_QUEUE_BATCHES_MAX: Final = 10
"""Batches of queues in one sweep: with a tick of a second, a million queues within 17 minutes."""
_OUTCOMES_KEEP_SECONDS: Final = 7 * 24 * 3600.0
_POOLS_PAUSE_SECONDS: Final = 60.0
_LATE_COPY_SECONDS: Final = 600.0
"""Executions are kept at least this long, because a late copy of a message may name one."""


class Pruner:
    """The sweeps that delete rows."""

    def __init__(
        self, database: Database, settings: ExecutorSettings, *, late_copy_seconds: float = _LATE_COPY_SECONDS
    ) -> None:
        self._protocol = ExecutorProtocol(database)
        self._settings = settings
        self._late_copy_seconds = late_copy_seconds
        self._action_id = 0
        self._after_id = 0
        self._after_webhook_id = 0
        self._after_queue_id = 0
        self._began_at = time.monotonic()
        self._prune_pools_at = self._began_at

    async def prune_executions(self) -> int:
        """Delete ended executions, until a round is done or for a while."""

        async def batch() -> tuple[int, bool]:
            pruned, self._action_id, self._after_id = await self._protocol.prune_executions(
                self._action_id,
                self._after_id,
                age_seconds=self._settings.retention_age,
                count=self._settings.retention_count,
                late_copy_seconds=self._late_copy_seconds,
                rows_max=_ROWS_MAX,
            )
            return pruned or 0, pruned is not None and self._action_id != 0

        return await _in_batches(batch)

    async def delete_idle_queues(self) -> int:
        """Delete queues of idle keys, for a while.

        Begins when this process has run for as long as a key may be idle: executors of an older version,
        which do not know deleted queues, have stopped by then.
        """
        idle_seconds = self._settings.retention_idle_keys
        if idle_seconds is None or time.monotonic() - self._began_at < idle_seconds:
            return 0

        async def batch() -> tuple[int, bool]:
            deleted, self._after_queue_id = await self._protocol.delete_idle_queues(
                self._after_queue_id, idle_seconds, _QUEUES_MAX
            )
            return deleted, self._after_queue_id != 0

        return await _in_batches(batch, batches_max=_QUEUE_BATCHES_MAX)

    async def prune_workers(self) -> int:
        """Delete workers that left long ago."""
        return await _while_full(self._protocol.prune_workers, self._settings.retention_workers)

    async def prune_pools(self) -> int:
        """Delete pools that no action names any more, now and then: the search reads all actions."""
        if time.monotonic() < self._prune_pools_at:
            return 0
        self._prune_pools_at = time.monotonic() + _POOLS_PAUSE_SECONDS
        return await self._protocol.prune_pools(_ROWS_MAX)

    async def prune_submission_outcomes(self) -> int:
        """Delete what became of old submissions of database sessions."""
        return await _while_full(self._protocol.prune_submission_outcomes, _OUTCOMES_KEEP_SECONDS)

    async def prune_audit_log(self) -> int:
        """Delete old rows of the audit log."""
        return await _while_full(self._protocol.prune_audit_log, self._settings.retention_audit_log)

    async def clean_webhooks(self) -> int:
        """Fail webhooks that are pending for too long; delete those that ended long ago."""

        async def batch() -> tuple[int, bool]:
            given_up, self._after_webhook_id = await self._protocol.give_up_webhooks(
                self._after_webhook_id, self._settings.webhook_age_max, _ROWS_MAX
            )
            return given_up, self._after_webhook_id != 0

        given_up = await _in_batches(batch)
        if given_up:
            WEBHOOK_ATTEMPTS.add("failed", count=given_up)
            logger.warning("webhooks_given_up", extra={"rows": given_up})
        return given_up + await _while_full(self._protocol.prune_webhooks, self._settings.webhook_keep)

    async def prune_dead_letters(self) -> int:
        """Delete dead letters that are too old or too many, the oldest first."""
        counts: Counter[str] = Counter()

        async def batch() -> tuple[int, bool]:
            deleted = await self._protocol.prune_dead_letters(
                self._settings.retention_dead_letters,
                self._settings.retention_dead_letters_count,
                self._settings.retention_dead_letters_bytes,
                _ROWS_MAX,
            )
            counts.update(deleted)
            for reason, count in deleted.items():
                DEAD_LETTERS_PRUNED.add(reason, count=count)
            return sum(deleted.values()), sum(deleted.values()) == _ROWS_MAX

        pruned = await _in_batches(batch)
        if dropped := counts["count"] + counts["bytes"]:
            logger.warning("dead_letters_dropped", extra={"letters": dropped})
        return pruned


async def _while_full(prune: Callable[[float, int], Awaitable[int]], keep_seconds: float) -> int:
    async def batch() -> tuple[int, bool]:
        count = await prune(keep_seconds, _ROWS_MAX)
        return count, count == _ROWS_MAX

    return await _in_batches(batch)


async def _in_batches(
    batch: Callable[[], Awaitable[tuple[int, bool]]], *, batches_max: int = _BATCHES_MAX
) -> int:
    """Repeat while there is more, up to `batches_max`; return how many rows were deleted."""
    total = 0
    for _ in range(batches_max):
        began_at = time.monotonic()
        count, has_more = await batch()
        total += count
        if not has_more:
            break
        await sleep((time.monotonic() - began_at) * _PAUSE_FACTOR)
    return total
