"""Deletes old rows: ended executions, gone workers, webhooks, dead letters, the audit log and the history.

In: time, and the settings. Out: how many rows were deleted. Works in small batches, each a transaction of its
own, with a pause after each that is longer than the batch: pruning uses only a share of one connection. Every
executor runs this; what another one is deleting is skipped. Answers are deleted by `executor.inbox`, and
grants that are over by the leader's turns; a key that is idle costs nothing.
"""

import asyncio
import logging
import time
from asyncio import sleep
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.history.retention import ExecutionPruner
from turnstile.executor.metrics import BACKGROUND_FAILURES, DEAD_LETTERS_PRUNED, WEBHOOK_ATTEMPTS
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import statements
from turnstile.executor.webhooks.deliveries import Deliveries

logger = logging.getLogger(__name__)
_FAILED: Final = Episodes(logger, "retention_failed", level=logging.ERROR)
_POSTPONED: Final = Episodes(logger, "retention_postponed")

_ROWS_MAX: Final = 500
"""Rows read in one transaction."""
_PAUSE_FACTOR: Final = 4
"""The pause after a batch, in multiples of the batch's duration."""
_BATCHES_MAX: Final = 200
"""Batches of one subject in one round; the rest waits for the next round."""
_LATE_COPY_SECONDS: Final = 600.0
"""Executions are kept at least this long, because a late copy of a message may name one."""
_STATEMENTS: Final = statements("retention.sql")


class Pruner:
    """Deletes in rounds, one after each interval of the watchdog."""

    def __init__(
        self, database: Database, settings: ExecutorSettings, *, late_copy_seconds: float = _LATE_COPY_SECONDS
    ) -> None:
        self._database = database
        self._settings = settings
        self._executions = ExecutionPruner(
            database,
            keep_seconds=settings.retention_age,
            keep_count=settings.retention_count,
            late_copy_seconds=late_copy_seconds,
        )
        self._deliveries = Deliveries(database)
        self._after_webhook_id = 0

    async def run(self) -> NoReturn:
        """Delete until cancelled."""
        subjects: dict[str, Callable[[], Awaitable[int]]] = {
            "prune_executions": self.prune_executions,
            "prune_webhooks": self.prune_webhooks,
            "prune_dead_letters": self.prune_dead_letters,
            "prune_audit_log": self.prune_audit_log,
            "prune_workers": self.prune_workers,
            "prune_history": self.prune_history,
        }
        while True:
            for name, prune in subjects.items():
                try:
                    await prune()
                except Unavailable as error:
                    BACKGROUND_FAILURES.add(name)
                    _POSTPONED.failed(name, reason=str(error))
                except asyncpg.PostgresError as error:
                    # For example a right that this account lacks; the others go on.
                    BACKGROUND_FAILURES.add(name)
                    _FAILED.failed(name, task=name, reason=str(error))
                else:
                    _POSTPONED.works(name)
                    _FAILED.works(name)
            await asyncio.sleep(self._settings.watchdog_interval)

    async def prune_executions(self) -> int:
        """Delete ended executions, until a round is done or for a while."""
        return await self._executions.prune()

    async def prune_audit_log(self) -> int:
        """Delete what was recorded long ago."""
        return await self._prune("prune_audit_log", self._settings.retention_audit_log)

    async def prune_workers(self) -> int:
        """Delete workers that have been gone for long."""
        return await self._prune("prune_workers", self._settings.retention_workers)

    async def prune_history(self) -> int:
        """Delete what is known of minutes that are over for long."""
        return await self._prune("prune_history", self._settings.retention_history)

    async def _prune(self, statement: str, keep_seconds: float) -> int:
        async def batch() -> tuple[int, bool]:
            count: int = await self._database.fetchval(_STATEMENTS[statement], keep_seconds, _ROWS_MAX)
            return count, count == _ROWS_MAX

        return await _in_batches(batch)

    async def prune_webhooks(self) -> int:
        """Fail webhooks that are pending for too long; delete those that ended long ago."""

        async def give_up() -> tuple[int, bool]:
            given_up, self._after_webhook_id = await self._deliveries.give_up(
                self._after_webhook_id, self._settings.webhook_age_max, _ROWS_MAX
            )
            return given_up, self._after_webhook_id != 0

        async def delete() -> tuple[int, bool]:
            count = await self._deliveries.prune(self._settings.webhook_keep, _ROWS_MAX)
            return count, count == _ROWS_MAX

        given_up = await _in_batches(give_up)
        if given_up:
            WEBHOOK_ATTEMPTS.add("failed", count=given_up)
            logger.warning("webhooks_given_up", extra={"rows": given_up})
        return given_up + await _in_batches(delete)

    async def prune_dead_letters(self) -> int:
        """Delete dead letters that are too old or too many, the oldest first."""
        counts: Counter[str] = Counter()

        async def batch() -> tuple[int, bool]:
            row = await self._database.fetchrow(
                statements("dead_letters/dead_letters.sql")["prune"],
                self._settings.retention_dead_letters,
                self._settings.retention_dead_letters_count,
                self._settings.retention_dead_letters_bytes,
                _ROWS_MAX,
            )
            assert row is not None
            deleted = {reason: count for reason, count in row.items() if count}
            counts.update(deleted)
            for reason, count in deleted.items():
                DEAD_LETTERS_PRUNED.add(reason, count=count)
            return sum(deleted.values()), sum(deleted.values()) == _ROWS_MAX

        pruned = await _in_batches(batch)
        if dropped := counts["count"] + counts["bytes"]:
            logger.warning("dead_letters_dropped", extra={"letters": dropped})
        return pruned


async def _in_batches(batch: Callable[[], Awaitable[tuple[int, bool]]]) -> int:
    """Repeat while there is more, up to a bound; return how many rows were deleted."""
    total = 0
    for _ in range(_BATCHES_MAX):
        began_at = time.monotonic()
        count, has_more = await batch()
        total += count
        if not has_more:
            break
        await sleep((time.monotonic() - began_at) * _PAUSE_FACTOR)
    return total
