"""Batches the calls of all attempts to the database and to the broker, and repeats them until they succeed.

In: one attempt's claim, report or message. Out: its answer. Each of these calls may be repeated, so an
attempt waits here during an outage instead of failing. It does not wait for its completion message: up to one
batch of them is published in the background. While the lease is in doubt nothing is claimed, and a report
that the database refuses because of the lease waits for the next renewal. When the lease is lost,
`worker.attempt` ends the waits. The logs and the progress of running attempts are written here too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import asyncpg

from turnstile.common.batcher import Batcher
from turnstile.common.broker.best_effort import BestEffortPublisher, Undelivered
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE
from turnstile.common.domain.errors import Unavailable
from turnstile.common.gathering import GatherWindow, ProcessorWait
from turnstile.common.status_events import StatusEvents
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.lease import Lease
from turnstile.worker.logs import LogPiece, LogTail
from turnstile.worker.metrics import UNDELIVERED
from turnstile.worker.progress import Progress
from turnstile.worker.protocol import Answer, Claim, Finished, Offer, Report, Request, Verdict, WorkerProtocol

logger = logging.getLogger(__name__)
_LOGS_DROPPED: Final = Episodes(logger, "logs_dropped")
_PROGRESS_REFUSED: Final = Episodes(logger, "progress_refused")
_CLAIMS_POSTPONED: Final = Episodes(logger, "claim_postponed")
_CALL_POSTPONED: Final = Episodes(logger, "call_postponed")

T = TypeVar("T")

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.5
_FLUSHED_ATTEMPTS_MAX: Final = 500
_FLUSHED_CHARS_MAX: Final = 1024 * 1024
"""In one statement; logs that did not fit come first in the next one."""
_PROGRESS_SECONDS: Final = 1.0
"""Between two rounds of progress, each of one statement, or of one for each 500 attempts."""
_LAST_PROGRESS_SECONDS: Final = 2.0
"""Longest wait for the last progress of an attempt; its end is reported all the same."""
_PROGRESS_ATTEMPTS_MAX: Final = 500
"""In one statement."""


class LogFlusher:
    """Writes the new part of each running attempt's log to the database, about once a second.

    Claims and finishes never wait for it: what was not flushed is part of the attempt's report.
    """

    def __init__(self, protocol: WorkerProtocol, *, interval_seconds: float) -> None:
        self._protocol = protocol
        self._interval_seconds = interval_seconds
        self._logs: dict[Offer, LogTail] = {}
        self._any_logs = asyncio.Event()

    def watch(self, offer: Offer, log: LogTail) -> None:
        """Flush what is written to `log`, until `forget`."""
        self._logs[offer] = log
        self._any_logs.set()

    def forget(self, offer: Offer) -> None:
        """Stop flushing the log of an attempt."""
        self._logs.pop(offer, None)

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            await self._any_logs.wait()
            await asyncio.sleep(self._interval_seconds)
            if not self._logs:
                self._any_logs.clear()
                continue
            try:
                await self._flush()
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.debug("logs_not_flushed", extra={"reason": str(error)})

    async def _flush(self) -> None:
        pieces = self._next_pieces()
        if not pieces:
            return
        try:
            if not await self._protocol.append_logs([(offer, piece) for offer, _, piece in pieces]):
                return
            reached(CrashPoint.LOG_WRITTEN)
        except REFUSED_BY_DATABASE as error:
            _LOGS_DROPPED.failed("logs", attempts=len(pieces), reason=str(error))
        for offer, log, _ in pieces:
            log.confirm()
            if offer in self._logs:
                self._logs[offer] = self._logs.pop(offer)

    def _next_pieces(self) -> list[tuple[Offer, LogTail, LogPiece]]:
        chars = 0
        pieces = []
        for offer, log in self._logs.items():
            piece = log.take()
            if piece is not None:
                pieces.append((offer, log, piece))
                chars += len(piece.text)
                if len(pieces) == _FLUSHED_ATTEMPTS_MAX or chars >= _FLUSHED_CHARS_MAX:
                    break
        return pieces


class Gateway:
    """The database and the broker, shared by all attempts of one worker id."""

    def __init__(
        self,
        protocol: WorkerProtocol,
        publisher: Publisher,
        side_publisher: Publisher,
        lease: Lease,
        logs: LogFlusher,
    ) -> None:
        """`side_publisher` is a second connection, for dead letters and messages that a queue refused."""
        self.lease = lease
        self.logs = logs
        self.progress = ProgressWriter(protocol)
        self._protocol = protocol
        self._publisher = publisher
        undelivered = Undelivered(UNDELIVERED.add)
        self._best_effort = BestEffortPublisher(side_publisher, on_dropped=undelivered)
        self._reliable = ReliablePublisher(
            publisher, self._best_effort, restore=self._restore, on_abandoned=undelivered
        )
        self._requests: Batcher[Request, Answer] = Batcher(
            self._exchange, size_bytes=self._request_bytes, window=GatherWindow(ProcessorWait())
        )
        self._parameters_bytes = 0
        self._messages: Batcher[Outgoing, None] = Batcher(
            self._publish, size_bytes=lambda message: len(message.body)
        )
        self.status_events = StatusEvents(publisher, app_id="worker")

    async def run(self) -> None:
        """Run the batchers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._requests.run(), name="claims-and-finishes")
            tasks.create_task(self._messages.run(), name="messages")
            tasks.create_task(self.logs.run(), name="logs")
            tasks.create_task(self.progress.run(), name="progress")
            tasks.create_task(self._best_effort.run(), name="best-effort publisher")

    async def claim(self, offer: Offer, *, give_up: Callable[[], bool]) -> Claim | Verdict | None:
        """Claim one attempt; None if `give_up` returns True, or the lease is lost, before it was claimed."""
        while await self.lease.certain() and not give_up():
            try:
                answer = await self._requests.submit(offer)
            except (Unavailable, asyncpg.PostgresError) as error:
                _CLAIMS_POSTPONED.failed("claim", execution_id=offer.execution_id, reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            _CLAIMS_POSTPONED.works("claim")
            assert not isinstance(answer, Finished), "an offer is answered by a claim"
            if not await self._must_repeat(answer):
                return None if answer is Verdict.LEASE_OVER else answer
        return None

    async def finish(self, report: Report) -> Finished:
        """Report one outcome; return when the database has answered, or the lease is lost."""
        while True:
            finished = await _until_available(lambda: self._requests.submit(report), "finish")
            assert isinstance(finished, Finished), "a report is answered by `Finished`"
            if not await self._must_repeat(finished.verdict):
                return finished

    async def _must_repeat(self, answer: Claim | Verdict) -> bool:
        """Wait until the call can succeed; False if it has, or if the lease is lost."""
        if answer is Verdict.HELD:
            await asyncio.sleep(_RETRY_SECONDS)
            return True
        return answer is Verdict.LEASE_OVER and await self.lease.next_renewal()

    async def hand_back(self, offer: Offer) -> bool:
        """Hand one attempt back; False if this worker no longer held it."""
        given = await _until_available(lambda: self._protocol.hand_back([offer]), "hand_back")
        return offer.execution_id in given

    async def publish(self, message: Outgoing) -> None:
        """Publish; return when the broker has confirmed it, or a queue refused it and it is given up."""
        await _until_available(lambda: self._messages.submit(message), "publish")

    async def publish_soon(self, message: Outgoing) -> None:
        """Publish without waiting for the confirmation, unless a batch is waiting already."""
        if self._messages.has_room:
            self._messages.post(message)
        else:
            await self.publish(message)

    async def all_published(self) -> None:
        """Wait until every message is confirmed, or given up."""
        await self._messages.idle()

    async def dead_letter(self, message: Outgoing) -> None:
        """Publish a dead letter; return when it is confirmed, or dropped and logged."""
        await asyncio.wait(self._best_effort.post([message]))

    async def _exchange(self, requests: Sequence[Request]) -> list[Answer]:
        answers = await self._protocol.exchange(requests)
        claimed = [len(each.parameters_json) for each in answers if isinstance(each, Claim)]
        if claimed:
            self._parameters_bytes = max(*claimed, self._parameters_bytes * 7 // 8)
        return answers

    def _request_bytes(self, request: Request) -> int:
        """Return the share of a batch: the result's size, or for a claim the size of recent parameters."""
        return len(request.result_json or "") if isinstance(request, Report) else self._parameters_bytes

    async def _publish(self, messages: Sequence[Outgoing]) -> list[None]:
        await self._reliable.publish(messages)
        reached(CrashPoint.ATTEMPT_PUBLISHED)
        return [None] * len(messages)

    async def _restore(self, returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Declare a deleted delay or dead-letter queue again; the executor declares its own queues."""
        with suppress(BrokerUnavailable):
            await self._publisher.restore()
        return returned


async def _until_available(call: Callable[[], Awaitable[T]], name: str) -> T:
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            answer = await call()
        except (Unavailable, asyncpg.PostgresError) as error:
            _CALL_POSTPONED.failed(name, call=name, reason=str(error))
        else:
            _CALL_POSTPONED.works(name, call=name)
            return answer
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


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
            async with asyncio.timeout(_LAST_PROGRESS_SECONDS):
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
                for start in range(0, len(offers), _PROGRESS_ATTEMPTS_MAX):
                    await self._write(offers[start : start + _PROGRESS_ATTEMPTS_MAX])
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.debug("progress_not_written", extra={"reason": str(error)})
            await asyncio.sleep(_PROGRESS_SECONDS)
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
                _PROGRESS_REFUSED.failed("progress", attempts=len(rows), reason=str(error))
            for offer, progress in rows:
                # A newer one may have come meanwhile.
                if self._waiting.get(offer) is progress:
                    del self._waiting[offer]
