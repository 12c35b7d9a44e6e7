"""Takes logs and progress of running attempts from the queue that all executors share, and writes them.

In: `execution.log` and `execution.progress` of workers. Out: rows, then acknowledgements. Nothing is decided,
so any executor may write a message, and again. What cannot be read becomes a dead letter; what comes from a
sender that does not hold the attempt is counted and forgotten (P6).
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Final

import asyncpg

from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE
from turnstile.common.domain.errors import Unavailable
from turnstile.common.report_wire import (
    EXECUTION_LOG,
    EXECUTION_PROGRESS,
    LogPiece,
    ProgressReport,
    decode_log,
    decode_progress,
)
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.worker_protocol import Sender
from turnstile.common.worker_wire import InvalidWireMessage
from turnstile.executor.history.reports import ReportWriter

logger = logging.getLogger(__name__)
_POSTPONED: Final = Episodes(logger, "reports_postponed")

_BATCH_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
_PAUSE_SECONDS: Final = 1.0


class ReportListener:
    """Writes what one subscription delivers."""

    def __init__(self, subscription: Subscription, writer: ReportWriter) -> None:
        self._subscription, self._writer = subscription, writer
        self.invalid = 0
        """Messages that could not be read."""
        self.refused = 0
        """Pieces and reports of attempts that their sender did not hold."""

    async def run(self) -> None:
        """Write until cancelled; while the database is out, the same batch again and again."""
        while True:
            batch = await self._subscription.next_batch(_BATCH_MAX, bytes_max=_BATCH_BYTES_MAX)
            await self._store(self._without_invalid(batch))

    def _without_invalid(self, batch: Sequence[Delivery]) -> list["_Message"]:
        valid: list[_Message] = []
        for delivery in batch:
            try:
                valid.append((delivery, *_decoded(delivery)))
            except InvalidWireMessage as error:
                self._reject(delivery, error)
        return valid

    def _reject(self, delivery: Delivery, error: Exception) -> None:
        self.invalid += 1
        logger.warning("report_invalid", extra={"error": str(error), "type": delivery.type})
        self._subscription.reject([delivery], requeue=False)

    async def _store(self, valid: Sequence["_Message"]) -> None:
        """Write and acknowledge messages, once the database takes them; one that it never can is rejected."""
        while True:
            try:
                await self._write(valid)
                break
            except REFUSED_BY_DATABASE as error:
                if len(valid) == 1:
                    self._reject(valid[0][0], error)
                    return
                for each in valid:
                    await self._store([each])
                return
            except (Unavailable, asyncpg.PostgresError) as error:
                _POSTPONED.failed("reports", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
        reached(CrashPoint.REPORTS_WRITTEN)
        _POSTPONED.works("reports")
        self._subscription.ack([delivery for delivery, _, _ in valid])

    async def _write(self, valid: Sequence["_Message"]) -> None:
        by_sender: dict[tuple[str, str], tuple[list[LogPiece], list[ProgressReport]]] = {}
        for _, sender, reports in valid:
            pieces, progress = by_sender.setdefault((sender.worker_id, sender.secret), ([], []))
            for each in reports:
                if isinstance(each, LogPiece):
                    pieces.append(each)
                else:
                    progress.append(each)
        for (worker_id, secret), (pieces, progress) in by_sender.items():
            digest = hashlib.sha256(secret.encode()).digest()
            if pieces:
                self.refused += await self._writer.append_logs(worker_id, digest, pieces)
            if progress:
                self.refused += await self._writer.report_progress(worker_id, digest, progress)


_Reports = Sequence[LogPiece] | Sequence[ProgressReport]
_Message = tuple[Delivery, Sender, _Reports]


def _decoded(delivery: Delivery) -> tuple[Sender, _Reports]:
    match delivery.type:
        case str(kind) if kind == EXECUTION_LOG:
            return decode_log(delivery.body)
        case str(kind) if kind == EXECUTION_PROGRESS:
            return decode_progress(delivery.body)
        case kind:
            raise InvalidWireMessage(f"type: {kind!r}; expected {EXECUTION_LOG} or {EXECUTION_PROGRESS}")
