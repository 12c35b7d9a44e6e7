"""Admits what database sessions submit in their own transactions, in the order of their commits.

In: committed rows of `turnstile.submit`, announced by NOTIFY or found by a poll once a second. Out:
executions, offers, and for what is refused a reason and a dead letter. One executor leads, by an advisory
lock of its session; another one takes what the leader leaves for too long. The locks of the rows make one
execution of each submission (P5), whichever executor admits it. While submissions arrive the leader reads
every few milliseconds, and the sessions do not notify: transactions with notifications commit one after
another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final, Self
from uuid import UUID

import asyncpg

from turnstile.common.batcher import BATCH_BYTES_MAX
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import CONNECTION_ERRORS, DatabaseHosts
from turnstile.common.domain.errors import Code, Refusal, Unavailable
from turnstile.common.requests import (
    read_json,
    read_request,
    read_traceparent,
    request_bytes_max,
    request_hash,
)
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import instrumentation
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import DEAD_LETTERED, SUBMISSION_LEFT_SECONDS
from turnstile.executor.protocol import SWEEPS_CHANNEL, StoredSubmission, SubmissionPage
from turnstile.executor.results import Accepted, Admission, Rejected, is_blocked
from turnstile.executor.slot_grants import QueueManager

logger = logging.getLogger(__name__)

CHANNEL: Final = "turnstile_submissions"
_POLL_SECONDS: Final = 1.0
"""Pause between two polls without a notification, and between two tries to lead."""
_BUSY_PAUSE_SECONDS: Final = 0.004
"""Pause between two polls while submissions arrive."""
_BUSY_SECONDS: Final = 0.25
"""How long after the last submission the leader still polls without a notification."""
_LEFT_SECONDS: Final = 2.0
"""The leader is late: another executor takes what was submitted longer ago."""
_CONNECT_SECONDS: Final = 5.0
_COMMAND_SECONDS: Final = 5.0
_LOCK_TIMEOUT: Final = "1s"
_PAGES_MAX: Final = 20
"""Pages behind submissions whose queues other sessions hold, before a poll starts from the first again."""
_RAISE_SECONDS: Final = 0.1
"""Shortest time between two polls that list the open transactions: the list takes locks of the server."""
_SWEEP_SECONDS: Final = 60.0
"""Time between two polls from the first ticket, whatever the bound is (P7)."""


class SubmissionBound:
    """From which ticket on submissions are left, as one session of an executor knows it (P5, P15).

    Rows of decided submissions stay for as long as an old snapshot is open, so each poll begins behind them.
    The bound rises past a ticket when every transaction that drew it or an earlier one has ended and its rows
    were read: no submission is left behind it, however long its transaction takes to commit.
    """

    def __init__(self) -> None:
        self._from_ticket = 0
        self._candidate: tuple[int, frozenset[str]] | None = None
        self._listed_at = self._swept_at = float("-inf")
        self._oldest: tuple[int, float] | None = None

    def begin(self) -> tuple[int, bool]:
        """Return where a poll begins, and whether it is to list the open transactions."""
        now = monotonic()
        with_entering = now - self._listed_at >= _RAISE_SECONDS
        if with_entering:
            self._listed_at = now
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            return 0, with_entering
        return self._from_ticket, with_entering

    def read(self, page: SubmissionPage) -> None:
        """Take the first page of a poll; raise the bound if the page lists the open transactions."""
        self._note_oldest(page.oldest_ticket)
        if page.entering is None:
            return
        if self._candidate is not None:
            newest_ticket, entering = self._candidate
            if entering & page.entering:
                return
            # All of them have ended: what they committed is on this page or behind it, or was decided.
            left = newest_ticket + 1 if page.oldest_ticket is None else page.oldest_ticket
            self._from_ticket = max(self._from_ticket, min(left, newest_ticket + 1))
        self._candidate = (page.newest_ticket, page.entering)

    def left_seconds(self) -> float:
        """Return for how long the oldest submission was read and not decided."""
        return 0.0 if self._oldest is None else monotonic() - self._oldest[1]

    def _note_oldest(self, ticket: int | None) -> None:
        if ticket is None:
            self._oldest = None
        elif self._oldest is None or self._oldest[0] != ticket:
            self._oldest = ticket, monotonic()


class SubmissionListener:
    """The submissions of database sessions, as one executor sees them."""

    def __init__(
        self,
        database_url: str,
        queue_manager: QueueManager,
        dispatcher: Dispatcher,
        *,
        batch_max: int,
        parameters_bytes_max: int,
        on_round: Callable[[str], None],
    ) -> None:
        """`on_round` gets the name of each executor that completes a round of sweeps."""
        self._on_round = on_round
        self._hosts = DatabaseHosts(database_url, connect_seconds=_CONNECT_SECONDS)
        self._queue_manager = queue_manager
        self._protocol = queue_manager.protocol
        self._dispatcher = dispatcher
        self._batch_max = batch_max
        self._parameters_bytes_max = parameters_bytes_max
        self._not_admitted = Episodes(logger, "submissions_postponed")
        self._not_listening = Episodes(logger, "submissions_not_heard")

    async def run(self, stop: asyncio.Event) -> None:
        """Admit submissions until `stop` is set; polls that have begun end first."""
        while not stop.is_set():
            try:
                async with _Session.open(self._hosts, self._on_round) as session:
                    self._not_listening.works("session")
                    await self._serve(session, stop)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                self._not_listening.failed("session", reason=str(error) or type(error).__name__)
                await _first(stop.wait(), seconds=_POLL_SECONDS)

    async def _serve(self, session: "_Session", stop: asyncio.Event) -> None:
        clock = asyncio.get_running_loop().time
        leads = False
        found_at = -_BUSY_SECONDS
        # Of this session: a new one may be on a restored database.
        bound = SubmissionBound()
        SUBMISSION_LEFT_SECONDS.read_from(bound.left_seconds)
        while not stop.is_set() and not session.is_closed():
            leads = leads or await session.lock("leader")
            session.woken.clear()
            if await self._poll(bound, min_age_seconds=0.0 if leads else _LEFT_SECONDS):
                found_at = clock()
            if not leads:
                await _first(stop.wait(), seconds=_POLL_SECONDS)
            elif (is_busy := clock() - found_at < _BUSY_SECONDS) or session.is_silencing():
                if is_busy:
                    session.silence()
                await _first(stop.wait(), seconds=_BUSY_PAUSE_SECONDS)
            elif session.is_silent():
                # What was committed before the lock is gone is found by the next poll.
                await session.end_silence()
            else:
                await session.check()
                await _first(stop.wait(), session.woken.wait(), seconds=_POLL_SECONDS)

    async def _poll(self, bound: SubmissionBound, *, min_age_seconds: float) -> int:
        """Decide about all committed submissions that are old enough; return how many were decided."""
        decided = 0
        passed_refs: set[str] = set()
        from_ticket, with_entering = bound.begin()
        try:
            for number in range(_PAGES_MAX):
                page = await self._protocol.next_submissions(
                    from_ticket,
                    self._batch_max,
                    BATCH_BYTES_MAX,
                    body_bytes_max=request_bytes_max(self._parameters_bytes_max),
                    passed_refs=sorted(passed_refs),
                    min_age_seconds=min_age_seconds,
                    with_entering=with_entering and number == 0,
                )
                # Later pages leave out actions, so only the first one shows the oldest ticket.
                if number == 0:
                    bound.read(page)
                if not page.submissions:
                    break
                decided += await self._decide(page.submissions, passed_refs)
        except (Unavailable, asyncpg.PostgresError) as error:
            self._not_admitted.failed("submissions", reason=str(error))
        else:
            self._not_admitted.works("submissions")
        return decided

    async def _decide(self, page: Sequence[StoredSubmission], passed_refs: set[str]) -> int:
        """Admit or refuse a page; add the actions whose queues other sessions hold to `passed_refs`."""
        tickets: dict[UUID | None, int] = {each.request_id: each.ticket for each in page}
        admissions: list[Admission] = []
        rejected: list[tuple[UUID, Rejected]] = []
        for submission in page:
            try:
                admissions.append(self._read(submission))
            except Refusal as refusal:
                rejected.append((submission.request_id, Rejected(code=refusal.code, message=refusal.message)))
        verdicts, grants = await self._queue_manager.admit(admissions, tickets)
        reached(CrashPoint.SUBMISSIONS_ADMITTED)
        decided = list(zip(admissions, verdicts, strict=False))
        self._dispatcher.announce_admitted(
            (admission.action_ref, verdict)
            for admission, verdict in decided
            if isinstance(verdict, Accepted) and not verdict.duplicate
        )
        await self._dispatcher.dispatch(grants)
        for admission, verdict in decided:
            if is_blocked(verdict):
                passed_refs.add(admission.action_ref)
            elif isinstance(verdict, Rejected):
                assert admission.delivery_key is not None
                rejected.append((admission.delivery_key, verdict))
        if rejected:
            await self._reject(rejected, tickets)
        if len(verdicts) < len(admissions):
            raise Unavailable("the database failed within a batch")
        return len(page) - sum(is_blocked(verdict) for verdict in verdicts)

    async def _reject(
        self, rejected: Sequence[tuple[UUID, Rejected]], tickets: Mapping[UUID | None, int]
    ) -> None:
        await self._protocol.reject_submissions(
            [(tickets[request_id], each.code, each.message) for request_id, each in rejected]
        )
        for request_id, each in rejected:
            instrumentation.refused(each.code, each.message, str(request_id))
            DEAD_LETTERED.add(each.code)

    def _read(self, submission: StoredSubmission) -> Admission:
        bytes_max = request_bytes_max(self._parameters_bytes_max)
        if submission.request_json is None:
            raise Refusal(
                Code.TOO_LARGE, f"body: more than the {bytes_max} bytes that are accepted; send a reference"
            )
        value = read_json(submission.request_json.encode(), bytes_max=bytes_max)
        request = read_request(value, parameters_bytes_max=self._parameters_bytes_max)
        traceparent = submission.traceparent
        return Admission.of(
            request,
            request_hash(request),
            # Also beside an idempotency key: by this key the submitter finds the execution.
            delivery_key=submission.request_id,
            traceparent=read_traceparent({} if traceparent is None else {"traceparent": traceparent}),
        )


class _Session:
    """A database session that listens, and holds the locks of this executor."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.woken = asyncio.Event()
        self._silence: asyncio.Task[bool] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, hosts: DatabaseHosts, on_round: Callable[[str], None]) -> AsyncIterator[Self]:
        """Connect, listen, and disconnect at the end."""
        connection = await hosts.connect(
            command_timeout=_COMMAND_SECONDS,
            server_settings={
                "application_name": "turnstile executor submissions",
                "lock_timeout": _LOCK_TIMEOUT,
            },
        )
        session = cls(connection)
        try:
            connection.add_termination_listener(lambda _: session.woken.set())
            await connection.add_listener(CHANNEL, lambda *_: session.woken.set())
            await connection.add_listener(SWEEPS_CHANNEL, lambda *of: on_round(of[-1]))
            yield session
        finally:
            connection.terminate()
            if session._silence is not None:
                await asyncio.gather(session._silence, return_exceptions=True)

    def is_closed(self) -> bool:
        """Whether the connection is known to be lost."""
        return bool(self._connection.is_closed())

    async def lock(self, name: str) -> bool:
        """Take an advisory lock, unless another session holds it."""
        return bool(
            await self._connection.fetchval(
                "SELECT pg_try_advisory_lock(turnstile.submissions_lock($1))", name
            )
        )

    def silence(self) -> None:
        """Let submitting sessions commit without a notification from soon on; repeat it while they come.

        Each of them that notifies holds the lock, shared, until its end. A try of this session would fail for
        as long as they overlap; while this session waits for the lock, their tries fail.
        """
        if self._silence is None or (self._silence.done() and not self._silence.result()):
            self._silence = asyncio.create_task(self._wait_for_lock(), name="silence-submissions")

    def is_silencing(self) -> bool:
        """Whether this session waits for the lock: then nothing else may use it."""
        return self._silence is not None and not self._silence.done()

    def is_silent(self) -> bool:
        """Whether sessions commit without a notification. Raises if the connection was lost."""
        return self._silence is not None and self._silence.result()

    async def end_silence(self) -> None:
        """Let submitting sessions notify again."""
        self._silence = None
        await self._connection.fetchval("SELECT pg_advisory_unlock(turnstile.submissions_lock('busy'))")

    async def _wait_for_lock(self) -> bool:
        try:
            await self._connection.execute("SELECT pg_advisory_lock(turnstile.submissions_lock('busy'))")
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def check(self) -> None:
        """Raise if the connection is lost: then its locks are, too."""
        await self._connection.execute("SELECT 1")


async def _first(*events: Any, seconds: float) -> None:
    """Wait until one of these ends, or for so long."""
    tasks = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
