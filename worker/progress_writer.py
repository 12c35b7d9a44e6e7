"""Writes the progress of all attempts of a worker process to the database.

In: each progress of a running attempt, from any thread. Out: the newest one of each, about once a second, and
the last one before the attempt's end is reported. Attempts without progress cost nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import asyncpg

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE
from turnstile.common.domain.errors import Unavailable
from turnstile.worker.progress import Progress
from turnstile.worker.protocol import Offer, WorkerProtocol

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 1.0
"""Between two rounds, each of one statement, or of one for each 500 attempts."""
_LAST_SECONDS: Final = 2.0
"""Longest wait for the last progress of an attempt; its end is reported all the same."""
_ATTEMPTS_MAX: Final = 500
"""In one statement."""


class ProgressWriter:
    """Writes the progress of all attempts of one worker id. Create it in the event loop."""

    def __init__(self, protocol: WorkerProtocol) -> None:
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Offer, Progress] = {}
        self._any = asyncio.Event()
        self._is_awake = False
        self._writing = asyncio.Lock()

    def put(self, offer: Offer, progress: Progress) -> None:
        """Take the progress of a running attempt, from any thread."""
        self._waiting[offer] = progress
        if not self._is_awake:
            self._is_awake = True
            # Closed: the worker has ended, and with it the attempt.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._any.set)

    async def complete(self, offer: Offer) -> None:
        """Write the last progress of an attempt that has ended, if it is not written yet; for at most 2 s."""
        if offer not in self._waiting:
            return
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._write([offer])
        except (TimeoutError, Unavailable, asyncpg.PostgresError) as error:
            logger.debug("progress_not_written", extra={"reason": str(error)})
        finally:
            self._waiting.pop(offer, None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._any.wait()
            self._any.clear()
            self._is_awake = False
            try:
                offers = list(self._waiting)
                for start in range(0, len(offers), _ATTEMPTS_MAX):
                    await self._write(offers[start : start + _ATTEMPTS_MAX])
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.debug("progress_not_written", extra={"reason": str(error)})
            await asyncio.sleep(_INTERVAL_SECONDS)
            if self._waiting:
                self._is_awake = True
                self._any.set()

    async def _write(self, offers: Sequence[Offer]) -> None:
        async with self._writing:
            rows = [(offer, self._waiting[offer]) for offer in offers if offer in self._waiting]
            if not rows:
                return
            try:
                if not await self._protocol.report_progress(rows):
                    return
                reached(CrashPoint.PROGRESS_WRITTEN)
            except REFUSED_BY_DATABASE as error:
                logger.warning("progress_refused", extra={"attempts": len(rows), "reason": str(error)})
            for offer, progress in rows:
                # A newer one may have come meanwhile.
                if self._waiting.get(offer) is progress:
                    del self._waiting[offer]
