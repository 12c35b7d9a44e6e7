"""Keeps every report until the leader has committed it, and publishes them in order on one path (P3 to P5).

In: reports of attempts and of the receiver, and what the leader says that it has committed. Out: numbered
reports, many with one write, and again from the first uncommitted one whenever a copy may have been lost. A
grant whose end was reported stays known, so that an offer of it is answered and never started again.
"""

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    Held,
    Leaving,
    Report,
    ReportBody,
)
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.lease import Lease
from turnstile.worker.core.ports import Ports
from turnstile.worker.core.session import Session
from turnstile.worker.fence import Standing

_OVER_MAX: Final = 20_000
"""Grants that are remembered after the commit of their end, for a leader that lost its last commits."""
_REPORT_BYTES: Final = 300
_HELD_BYTES: Final = 100


class _Kept(NamedTuple):
    body: ReportBody
    size_bytes: int


class Outbox:
    """The reports of one worker that are not committed, and which of them are to be published. Pure."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._about: dict[Grant, int] = {}
        """The number of the latest report about a grant that is kept."""
        self._over: OrderedDict[Grant, bool] = OrderedDict()
        """Grants that have ended here, and whether they had started."""
        self._welcomed = (0, 0, 0)
        """Epoch and session of the last welcome that was answered, and the number of the answer."""
        self._number = 0
        self._next = 1
        """The number that is published next."""
        self._bytes = 0
        self._unmoved_since: float | None = None
        self._repeat_seconds = config.repeat_seconds
        self.pending = asyncio.Event()
        """Set while something is to be published."""
        self.urgent = asyncio.Event()
        """Set while the leader needs some of it at once."""
        self.empty = asyncio.Event()
        """Set while everything is committed."""
        self.empty.set()

    def __contains__(self, grant: Grant) -> bool:
        """Return whether something was reported about this grant, as far as that is remembered."""
        return grant in self._about or grant in self._over

    @property
    def has_room(self) -> bool:
        """Whether more work may start: its end will be kept as well."""
        return self._bytes < self._config.kept_bytes_max

    def held(self) -> list[tuple[int, Grant]]:
        """Return execution ids and grants of all ends and returns that are kept."""
        ends = (kept.body for kept in self._kept.values())
        return [
            (body.execution_id, body.grant)
            for body in ends
            if isinstance(body, AttemptEnded | AttemptReturned)
        ]

    def has_answered(self, session: Session) -> bool:
        """Return whether an answer to a welcome of this epoch and session is kept; else note that it follows.

        It is as good as a new one: the leader learns the rest by offering it again.
        """
        *before, number = self._welcomed
        if before == [session.epoch, session.number] and number in self._kept:
            return True
        self._welcomed = (session.epoch, session.number, self._number + 1)
        return False

    def add(self, body: ReportBody, *, is_urgent: bool = True) -> None:
        """Keep a report under the next number. An attempt has one end or return.

        Not urgent is an end after which the worker starts the next one of the queue by itself, and a start.
        """
        self._number += 1
        size_bytes = _size_bytes(body)
        self._kept[self._number] = _Kept(body, size_bytes)
        self._bytes += size_bytes
        match body:
            case AttemptEnded() | AttemptReturned():
                self._note_over(body)
                self._about[body.grant] = self._number
            case AttemptStarted():
                self._about[body.grant] = self._number
            case Held() | Leaving():
                pass
        self.pending.set()
        if is_urgent:
            self.urgent.set()
        self.empty.clear()

    def answer(self, execution_id: int, grant: Grant) -> bool:
        """Report once more what was reported of a grant; False if nothing was, or if it still runs."""
        if (number := self._about.get(grant)) is not None:
            self._repeat_from(number)
            return True
        had_started = self._over.get(grant)
        if had_started is None:
            return False
        # Its end was committed, so only a leader that lost the commit asks. What it returned is forgotten.
        reason = "it had ended, and the report is not kept any more"
        self.add(
            AttemptReturned(execution_id=execution_id, grant=grant, had_started=had_started, reason=reason)
        )
        return True

    def committed(self, upto: int, now: float) -> None:
        """Forget the reports up to a number; if the first one stays for long, publish all once more."""
        has_moved = False
        if self._kept and next(iter(self._kept)) <= upto:
            reached(CrashPoint.COMMIT_HEARD)
        while self._kept and (number := next(iter(self._kept))) <= upto:
            kept = self._kept.pop(number)
            self._bytes -= kept.size_bytes
            if not isinstance(kept.body, Held | Leaving) and self._about.get(kept.body.grant) == number:
                del self._about[kept.body.grant]
            has_moved = True
        self._next = max(self._next, min(upto, self._number) + 1)
        if self._next > self._number:
            self._nothing_pending()
        if not self._kept:
            self.empty.set()
        if has_moved:
            self._unmoved_since = now if self._kept else None
            self._repeat_seconds = self._config.repeat_seconds
        elif self._unmoved_since is not None and now - self._unmoved_since >= self._repeat_seconds:
            self._unmoved_since = now
            self._repeat_seconds = min(2 * self._repeat_seconds, self._config.repeat_seconds_max)
            self.repeat()

    def repeat(self) -> None:
        """Publish everything that is not committed once more."""
        self._repeat_from(0)

    def take(self, session: Session) -> list[Report]:
        """Return what is published next, in order, within the bounds of one write."""
        sender, kept_from = session.sender, next(iter(self._kept), self._number + 1)
        self._next = max(self._next, kept_from)
        reports: list[Report] = []
        left_bytes = self._config.batch_bytes_max
        while self._next <= self._number and len(reports) < self._config.batch_max and left_bytes > 0:
            kept = self._kept[self._next]
            reports.append(
                Report(
                    sender=sender,
                    number=self._next,
                    kept_from=kept_from,
                    epoch_seen=session.epoch,
                    body=kept.body,
                )
            )
            left_bytes -= kept.size_bytes
            self._next += 1
        if self._next > self._number:
            self._nothing_pending()
        return reports

    def published(self, now: float) -> None:
        """Note that what was taken was confirmed: from now on its commit is expected."""
        if self._kept and self._unmoved_since is None:
            self._unmoved_since = now

    def _repeat_from(self, number: int) -> None:
        if self._kept:
            self._next = min(self._next, max(number, next(iter(self._kept))))
            self.pending.set()
            self.urgent.set()

    def _nothing_pending(self) -> None:
        self.pending.clear()
        self.urgent.clear()

    def _note_over(self, body: AttemptEnded | AttemptReturned) -> None:
        had_started = body.had_started if isinstance(body, AttemptReturned) else body.started_at is not None
        self._over[body.grant] = had_started
        if len(self._over) > _OVER_MAX:
            self._over.popitem(last=False)


async def publish_reports(
    ports: Ports, config: WorkerConfig, session: Session, outbox: Outbox, lease: Lease
) -> None:
    """Publish reports, until the lease is over: what was lost with it reports nothing (P6)."""
    pause_seconds, next_at = config.retry_seconds, 0.0
    while True:
        await outbox.pending.wait()
        if not outbox.urgent.is_set():
            await ports.clock.wait(outbox.urgent, config.run_gather_seconds)
        if (early_seconds := next_at - ports.clock.monotonic()) > 0:
            await ports.clock.sleep(early_seconds)
        next_at = ports.clock.monotonic() + config.gather_seconds
        if lease.standing(ports.clock.monotonic()) is Standing.OVER:
            return
        try:
            await ports.broker.publish_reports(outbox.take(session))
        except Unavailable:
            # Each may have arrived or not. What was confirmed before may be gone with the server, too.
            outbox.repeat()
            await ports.clock.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, config.repeat_seconds)
        else:
            reached(CrashPoint.REPORTS_CONFIRMED)
            pause_seconds = config.retry_seconds
            outbox.published(ports.clock.monotonic())


def _size_bytes(body: ReportBody) -> int:
    match body:
        case AttemptEnded():
            texts = [body.log or "", *(body.error or ())]
            return _REPORT_BYTES + len(body.result or b"") + sum(map(len, texts))
        case Held():
            return _REPORT_BYTES + _HELD_BYTES * len(body.grants)
        case AttemptStarted() | AttemptReturned() | Leaving():
            return _REPORT_BYTES
