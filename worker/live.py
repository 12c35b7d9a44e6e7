"""What running attempts say: their logs and their progress, published in batches while they run (P9).

In: logs and progress of attempts, from any thread. Out: `execution.log` and `execution.progress` about once
a second, on a connection of their own: reports of ends and heartbeats never wait for them. What was not
published of a log when its attempt ends goes with the end. Bounded by what runs: one log and one progress
each.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Grant
from turnstile.common.report_wire import (
    EXECUTION_LOG,
    EXECUTION_PROGRESS,
    LogPiece,
    ProgressReport,
    encode_log,
    encode_progress,
)
from turnstile.common.worker_protocol import LastProgress, Offer, Sender
from turnstile.worker.logs import LogPiece as LogPart
from turnstile.worker.logs import LogTail
from turnstile.worker.progress import Progress
from turnstile.worker.worker_thread import InWorker

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 500
_CHARS_MAX: Final = 512 * 1024
"""In one message; logs that did not fit come first in the next one."""
_PROGRESS_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 2.0
"""Longest wait for the last progress when the worker ends."""

Publish = Callable[[str, bytes], Awaitable[None]]


class _Watched(NamedTuple):
    offer: Offer
    log: LogTail


class LiveReports:
    """The logs and the progress of all running attempts."""

    def __init__(
        self, publish: Publish, sender: Callable[[], Sender], in_worker: InWorker, *, log_seconds: float
    ) -> None:
        """`log_seconds`: between two messages with logs."""
        self._publish = publish
        self._sender = sender
        self._log_seconds = log_seconds
        self._in_worker = in_worker
        self._logs: dict[Grant, _Watched] = {}
        self._progress: dict[Grant, ProgressReport] = {}
        """What is to be published."""
        self._newest: dict[Grant, ProgressReport] = {}
        """Of each attempt that runs."""
        self._any_logs = asyncio.Event()
        self._any_progress = asyncio.Event()

    # From any thread.

    def watch(self, offer: Offer, log: LogTail) -> None:
        """Publish what is written to `log`, until `rest_of`."""
        self._logs[offer.grant] = _Watched(offer, log)
        if not self._any_logs.is_set():
            self._in_worker(self._any_logs.set)

    def report(self, offer: Offer, progress: Progress) -> None:
        """Publish the progress of a running attempt; of several the newest."""
        self._progress[offer.grant] = found = ProgressReport(
            execution_id=offer.execution_id,
            grant=offer.grant,
            attempt=offer.attempt,
            at=time.time(),
            done=progress.done,
            total=progress.total,
            message=progress.message,
        )
        if offer.grant in self._logs:
            self._newest[offer.grant] = found
        if not self._any_progress.is_set():
            self._in_worker(self._any_progress.set)

    # In the loop.

    def rest_of(self, grant: Grant) -> LogPart | None:
        """Return what was not published of the log of an attempt that ends; publish nothing more of it."""
        watched = self._logs.pop(grant, None)
        return None if watched is None else watched.log.rest()

    def last_progress_of(self, grant: Grant) -> LastProgress | None:
        """Return the last progress of an attempt that ends: what was published may be stored later."""
        newest = self._newest.pop(grant, None)
        if newest is None:
            return None
        return LastProgress(at=newest.at, done=newest.done, total=newest.total, message=newest.message)

    def clear(self) -> None:
        """Forget everything: nothing of this worker id is reported any more."""
        self._logs.clear()
        self._newest.clear()
        self._progress.clear()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_logs(), name="logs")
            tasks.create_task(self._publish_progress(), name="progress")

    async def finish(self) -> None:
        """Publish the last progress, if that is possible soon."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._progress_once()
        except (TimeoutError, Unavailable) as error:
            logger.debug("progress_not_published", extra={"reason": str(error)})

    async def _publish_logs(self) -> None:
        while True:
            await self._any_logs.wait()
            await asyncio.sleep(self._log_seconds)
            if not self._logs:
                self._any_logs.clear()
                # One may have been added before that was seen.
                if self._logs:
                    self._any_logs.set()
                continue
            try:
                await self._logs_once()
            except Unavailable as error:
                logger.debug("logs_not_published", extra={"reason": str(error)})

    async def _logs_once(self) -> None:
        taken = self._next_pieces()
        if not taken:
            return
        pieces = [
            LogPiece(
                execution_id=offer.execution_id, grant=offer.grant, attempt=offer.attempt, start=part.start,
                text=part.text,
            )
            for (offer, _), part in taken
        ]  # fmt: skip
        await self._publish(EXECUTION_LOG, encode_log(self._sender(), pieces))
        for watched, _ in taken:
            watched.log.confirm()
            # To the end: what did not fit comes first in the next message.
            grant = watched.offer.grant
            if grant in self._logs:
                self._logs[grant] = self._logs.pop(grant)

    def _next_pieces(self) -> list[tuple[_Watched, LogPart]]:
        chars = 0
        taken = []
        for watched in list(self._logs.values()):
            part = watched.log.take()
            if part is not None:
                taken.append((watched, part))
                chars += len(part.text)
                if len(taken) == _ATTEMPTS_MAX or chars >= _CHARS_MAX:
                    break
        return taken

    async def _publish_progress(self) -> None:
        while True:
            await self._any_progress.wait()
            self._any_progress.clear()
            try:
                await self._progress_once()
            except Unavailable as error:
                logger.debug("progress_not_published", extra={"reason": str(error)})
            await asyncio.sleep(_PROGRESS_SECONDS)
            if self._progress:
                self._any_progress.set()

    async def _progress_once(self) -> None:
        reports = list(self._progress.values())
        for start in range(0, len(reports), _ATTEMPTS_MAX):
            part = reports[start : start + _ATTEMPTS_MAX]
            body = encode_progress(self._sender(), part)
            await self._publish(EXECUTION_PROGRESS, body)
            for report in part:
                # A newer one may have come meanwhile.
                if self._progress.get(report.grant) is report:
                    del self._progress[report.grant]
