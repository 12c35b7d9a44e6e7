"""Brings the logs of running attempts to the record, so that they can be read while they run.

In: the log of each attempt under way. Out: what is new in them, about once a second, in one statement for
many attempts; what was not flushed comes with the attempt's end. Nothing waits for it, neither a claim nor a
finish, and while the record is out of reach each log keeps its last part. Next: `worker.record`.
"""

import asyncio
import logging
from typing import Final

import asyncpg

from turnstile.common.database import REFUSED_BY_DATABASE
from turnstile.common.domain.errors import Unavailable
from turnstile.worker.attempt_log import LogPiece, LogTail
from turnstile.worker.record import Offer, Record

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 500
_CHARS_MAX: Final = 1024 * 1024
"""In one statement; where there is more, those who were not served stand first the next time."""


class LogFlusher:
    """Flushes the logs of one worker id."""

    def __init__(self, record: Record, *, interval_seconds: float) -> None:
        self._record = record
        self._interval_seconds = interval_seconds
        self._logs: dict[Offer, LogTail] = {}
        self._some = asyncio.Event()

    def watch(self, offer: Offer, log: LogTail) -> None:
        """Flush what is written to `log`, until it is forgotten."""
        self._logs[offer] = log
        self._some.set()

    def forget(self, offer: Offer) -> None:
        """Flush no more of an attempt: what is left goes with its end."""
        self._logs.pop(offer, None)

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._interval_seconds)
            if not self._logs:
                self._some.clear()
                continue
            try:
                await self._flush()
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.debug("logs_not_flushed", extra={"reason": str(error)})

    async def _flush(self) -> None:
        pieces = self._taken()
        if not pieces:
            return
        try:
            if not await self._record.append_logs([(offer, piece) for offer, _, piece in pieces]):
                return
        except REFUSED_BY_DATABASE as error:
            logger.warning("logs_dropped", extra={"attempts": len(pieces), "reason": str(error)})
        for offer, log, _ in pieces:
            log.confirm()
            if offer in self._logs:
                self._logs[offer] = self._logs.pop(offer)

    def _taken(self) -> list[tuple[Offer, LogTail, LogPiece]]:
        chars = 0
        taken = []
        for offer, log in self._logs.items():
            piece = log.take()
            if piece is not None:
                taken.append((offer, log, piece))
                chars += len(piece.text)
                if len(taken) == _ATTEMPTS_MAX or chars >= _CHARS_MAX:
                    break
        return taken
