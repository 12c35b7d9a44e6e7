"""The leader's side of the protocol with workers: who lives, what each has received, what is committed.

In: messages of workers, probes that came back, the time. Out: inputs of the queue manager, messages to
sessions, rows to write. Pure: instants come from the caller, in seconds of one monotonic clock. A worker is
lost only if its lease is over and nothing of it was left in the queues, which a probe behind it shows (P6);
after a takeover, an outage or a pause of the leader every lease begins anew.
"""

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Dismissed,
    Heard,
    Heartbeat,
    Held,
    Hello,
    LeaderBody,
    Leaving,
    Offers,
    Report,
    Sender,
    ToSession,
    Welcome,
)
from turnstile.executor.leader.ports import Probe, Publication
from turnstile.executor.leader.records import WorkerRow
from turnstile.executor.queue_manager.inputs import (
    Ended,
    Input,
    Returned,
    Started,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.state import Execution, State

COMPLETIONS: Final = "executor.completions"
HEARTBEATS: Final = "executor.heartbeats"
_EPOCH_AHEAD_MAX: Final = 24 * 3600 * 1_000_000
"""How far above the database's clock in microseconds an epoch may be that a worker has seen: a database that
took over may have a clock that is behind."""
_HELD_MAX: Final = 1000
"""Executions that the row of a worker that is gone names."""


class Sent(NamedTuple):
    """A message that the worker has not confirmed to have received."""

    message: ToSession
    at: float


@dataclass(slots=True)
class Session:
    """One worker process and its present session."""

    row: WorkerRow
    lease_until: float
    is_answered: bool = False
    """The worker has answered the welcome of this epoch and session."""
    sent: int = 0
    unreceived: deque[Sent] = field(default_factory=deque)
    heartbeat: int = 0
    heartbeat_at: float = 0.0
    committed: int = 0
    """All reports up to this number are committed."""
    above: set[int] = field(default_factory=set)
    """Later reports that are committed, behind a gap."""
    leaving: int | None = None
    """The number of its last report: it has left once everything before it is committed."""
    probe: int | None = None
    """The probe that was sent after its lease was over."""
    probe_at: float = 0.0
    """When; a probe that was lost is sent again."""
    is_lost: bool = False
    """It is told so, and gone once that is confirmed: the next leader would not know whom to tell."""
    is_counted: bool = True
    """Whether its loss counts for what it runs."""


@lru_cache(maxsize=4096)
def secret_hash(secret: str) -> bytes:
    """Return what the leader keeps of a worker's secret."""
    return hashlib.sha256(secret.encode()).digest()


class Sessions:
    """All workers of an epoch."""

    def __init__(
        self, epoch: int, state: State, rows: Iterable[WorkerRow], now: float, *, offset: float = 0.0
    ) -> None:
        """Add `offset` to an instant `now` to get one of the database's clock."""
        self.epoch, self._offset = epoch, offset
        self.epoch_above = 0
        """An epoch that a worker has seen and that is higher than this leader's."""
        self.refused = 0
        """Messages without the secret of their worker, and those with an epoch that was never issued."""
        self._out: list[tuple[Session, LeaderBody]] = []
        self._again: list[Publication] = []
        """Numbered messages that are sent again, and what goes to unknown sessions."""
        self.rows: dict[str, WorkerRow] = {}
        """Workers whose row the next turn writes."""
        self.offer_again: list[Execution] = []
        self.stale: list[object] = []
        """Sources of ends that change nothing: of attempts that their sender does not hold."""
        self._state = state
        self._sessions = {
            row.worker_id: Session(row=row, lease_until=now + row.lease_seconds) for row in rows
        }
        self._lost: list[Session] = []
        """Workers that are told in this turn that they are lost."""
        self._probes = 0
        self._returned: dict[int, set[str]] = {}
        self._renewed_at = now
        """When all leases began anew."""

    def welcome_all(self) -> None:
        """Ask every known worker what it holds, at the beginning of an epoch."""
        for session in self._sessions.values():
            self._send(session, Welcome())

    def renew_all(self, now: float) -> None:
        """Begin every lease anew: for some time no worker could be heard."""
        self._renewed_at = now
        for session in self._sessions.values():
            session.lease_until = now + session.row.lease_seconds
            session.probe = None

    def all(self) -> Iterator[Session]:
        """Yield every worker with its present session."""
        yield from self._sessions.values()

    def lease_min(self) -> float:
        """Return the shortest lease of all workers, or a second."""
        return min((session.row.lease_seconds for session in self._sessions.values()), default=1.0)

    # What workers send.

    def hello(self, each: Hello, now: float, welcome: Welcome | None = None) -> Iterator[Input]:
        """Begin a session: nothing counts before the worker has answered the welcome."""
        self._see(each, now)
        known, at = self._sessions.get(each.sender.worker_id), now + self._offset
        row = WorkerRow(
            worker_id=each.sender.worker_id, session=each.sender.session,
            secret_hash=secret_hash(each.sender.secret), name=each.name, pools=each.pools,
            actions=each.actions, concurrency=each.concurrency, lease_seconds=each.lease_seconds,
            is_taking=each.is_taking, is_draining=known is not None and known.row.is_draining,
            about=each.about, not_ready=each.not_ready, registered_at=at, heard_at=at,
        )  # fmt: skip
        if known is not None:
            before = known.row
            row = replace(
                row, registered_at=before.registered_at, draining_at=before.draining_at,
                draining_count=before.draining_count,
            )  # fmt: skip
        if known is not None:
            if known.row.secret_hash != row.secret_hash:
                self.refused += 1
                return
            if row.session < known.row.session or known.is_lost:
                return
            if row.session == known.row.session and known.is_answered:
                return
            if row.session > known.row.session:
                known.sent, known.unreceived = 0, deque()
            known.row, known.is_answered = row, False
            known.lease_until, known.probe = now + row.lease_seconds, None
            session = known
        elif each.epoch_seen >= self.epoch:
            # It was lost, or has left, in this epoch. Its next session would number messages from 1 again.
            self._dismiss(each.sender)
            return
        else:
            session = self._sessions[row.worker_id] = Session(row=row, lease_until=now + row.lease_seconds)
        # Written before it is answered: the next leader must know where to ask.
        self.rows[row.worker_id] = row
        yield self._changed(session)
        self._send(session, welcome or Welcome())

    def heartbeat(self, each: Heartbeat, now: float, *, is_certain: bool) -> Iterator[Input]:
        """Renew a lease, and answer it only while the leadership is certain."""
        self._see(each, now)
        session = self._sessions.get(each.sender.worker_id)
        if session is None:
            if is_certain:
                self._dismiss(each.sender)
            return
        if not self._is_from(session, each.sender) or each.sender.session != session.row.session:
            return
        if session.is_lost:
            return
        session.lease_until, session.probe = now + session.row.lease_seconds, None
        if each.epoch_seen < self.epoch:
            self._send(session, Welcome())
            return
        self._received(session, each.received, now)
        if each.number > session.heartbeat:
            session.heartbeat, session.heartbeat_at = each.number, now
            said = each.is_taking, each.not_ready
            if said != (session.row.is_taking, session.row.not_ready):
                session.row = replace(
                    session.row, is_taking=each.is_taking, not_ready=each.not_ready,
                    heard_at=now + self._offset,
                )  # fmt: skip
                self.rows[session.row.worker_id] = session.row
                if not each.is_taking and each.not_ready is None:
                    # It was told to stop.
                    yield from self.drain(session.row.worker_id, now, is_draining=True)
                else:
                    yield self._changed(session)
        if is_certain:
            is_draining = session.row.is_draining
            self._send(
                session, Heard(heartbeat=each.number, committed=session.committed, is_draining=is_draining)
            )

    def _received(self, session: Session, received: int, now: float) -> None:
        """Forget what the worker has; send again what it should have had before its last heartbeat."""
        unreceived = session.unreceived
        while unreceived and unreceived[0].message.number <= received:
            unreceived.popleft()
        for index, sent in enumerate(unreceived):
            if sent.at >= session.heartbeat_at:
                break
            unreceived[index] = Sent(_later(sent.message, now - sent.at), now)
            self._again.append(self._publication(session.row, unreceived[index].message))

    def report(self, each: Report, now: float, source: object) -> Iterator[Input]:
        """Take a numbered report. A repetition changes nothing; its event may still be missing (`stale`)."""
        self._see(each, now)
        session = self._sessions.get(each.sender.worker_id)
        if session is None or not self._is_from(session, each.sender):
            if isinstance(each.body, AttemptEnded):
                self.stale.append(source)
            return
        self._advance(session, each.kept_from - 1)
        yield from self._inputs(session, each, now, source)
        if each.number > session.committed:
            session.above.add(each.number)
            self._advance(session, session.committed)
        if session.leaving is not None and session.committed >= session.leaving:
            yield from self._gone(session, now, why="stopped", is_counted=False)

    def _inputs(self, session: Session, each: Report, now: float, source: object) -> Iterator[Input]:
        match each.body:
            case AttemptEnded() as body:
                execution = self._execution_of(session, body)
                if execution is None:
                    self.stale.append(source)
                    return
                late = _late_seconds(execution, body.started_at)
                yield Ended(
                    execution_id=body.execution_id, grant=body.grant, status=body.status,
                    is_retryable=body.is_retryable, delay_seconds=body.delay_seconds,
                    started_at=_stored(body.started_at, late),
                    completed_at=_stored(body.completed_at, late), source=source,
                )  # fmt: skip
            case AttemptStarted() as body if (execution := self._execution_of(session, body)) is not None:
                late = _late_seconds(execution, body.at)
                yield Started(execution_id=body.execution_id, grant=body.grant, at=round(body.at + late, 6))
            case AttemptReturned() as body if self._execution_of(session, body) is not None:
                yield Returned(execution_id=body.execution_id, grant=body.grant, had_started=body.had_started)
            case Held() as body:
                is_copy = each.number <= session.committed or each.number in session.above
                if body.epoch == self.epoch and each.sender.session == session.row.session and not is_copy:
                    yield from self._answered(session, body, now)
            case Leaving():
                session.leaving = each.number
            case _:
                pass

    def _execution_of(
        self, session: Session, body: AttemptEnded | AttemptStarted | AttemptReturned
    ) -> Execution | None:
        """Return the execution of an attempt that the sender holds: it can report only its own."""
        worker = self._state.workers.get(session.row.worker_id)
        execution = None if worker is None else worker.held.get(body.execution_id)
        return execution if execution is not None and execution.grant == body.grant else None

    def _answered(self, session: Session, held: Held, now: float) -> Iterator[Input]:
        """Compare what a worker holds: offer the rest again, and cancel what it should not hold."""
        session.is_answered = True
        self.rows[session.row.worker_id] = session.row
        yield replace(self._changed(session), is_answer=True)
        worker = self._state.workers.get(session.row.worker_id)
        given = {} if worker is None else worker.held
        for execution_id, grant in held.grants:
            execution = given.get(execution_id)
            if execution is None or execution.grant != grant:
                self._send(session, CancelAttempt(execution_id=execution_id, grant=grant, reason="is over"))
        holds = set(held.grants)
        for execution in sorted(given.values(), key=lambda each: (each.priority, each.id)):
            if (execution.id, execution.grant) not in holds:
                self.offer_again.append(execution)

    def _changed(self, session: Session) -> WorkerChanged:
        row = session.row
        return WorkerChanged(
            worker_id=row.worker_id, pools=frozenset(row.pools), concurrency=row.concurrency,
            actions=None if row.actions is None else frozenset(row.actions),
            is_taking=session.is_answered and row.is_taking and not row.is_draining,
        )  # fmt: skip

    def is_draining(self, worker_id: str) -> bool | None:
        """Return whether an operator drains a worker; None: no such worker lives."""
        session = self._sessions.get(worker_id)
        return None if session is None or session.is_lost else session.row.is_draining

    def lease_seconds(self, worker_id: str) -> float:
        """Return the lease of a worker; 0: no such worker lives."""
        session = self._sessions.get(worker_id)
        return 0.0 if session is None or session.is_lost else session.row.lease_seconds

    def drain(self, worker_id: str, now: float, *, is_draining: bool) -> Iterator[Input]:
        """Let a worker take nothing new, or something again."""
        session = self._sessions.get(worker_id)
        if session is not None:
            row = session.row
            if is_draining != row.is_draining:
                # What waits there in runs goes back at once.
                count = min(len(self._held(worker_id)), row.concurrency)
                since = (now + self._offset, count) if is_draining else (None, None)
                row = replace(row, draining_at=since[0], draining_count=since[1])
            session.row = replace(row, is_draining=is_draining)
            self.rows[worker_id] = session.row
            yield self._changed(session)

    # Time.

    def overdue(self, now: float) -> Iterator[Publication]:
        """Yield probes for workers whose lease is over: behind everything that they may have sent before."""
        late = [
            s
            for s in self._sessions.values()
            if now > s.lease_until
            and not s.is_lost
            and (s.probe is None or now > s.probe_at + s.row.lease_seconds)
        ]
        if late:
            self._probes += 1
            self._returned[self._probes] = set()
            for session in late:
                session.probe, session.probe_at = self._probes, now
            for queue in (COMPLETIONS, HEARTBEATS):
                yield Publication(to=queue, body=Probe(epoch=self.epoch, number=self._probes))

    def probe_lost(self) -> None:
        """Forget a probe that may not have been published: the next tick sends another."""
        for session in self._sessions.values():
            session.probe = None

    def probed(self, queue: str, each: Probe, now: float) -> None:
        """Take a probe back: workers that were silent until it came through both queues are lost.

        They are told now, and gone when `lost` is called after that was confirmed.
        """
        returned = self._returned.get(each.number)
        if each.epoch != self.epoch or returned is None:
            return
        returned.add(queue)
        if len(returned) < 2:
            return
        del self._returned[each.number]
        for session in [s for s in self._sessions.values() if s.probe == each.number]:
            session.is_lost = True
            # What joined after the outage was not in it.
            has_joined_since = session.row.registered_at - self._offset > self._renewed_at
            is_over = now - self._renewed_at >= 2 * session.row.lease_seconds
            # A worker that drains ends with what it cannot stop.
            is_alone = has_joined_since or is_over
            session.is_counted = is_alone and not session.row.is_draining
            self._lost.append(session)
            self._send(session, Dismissed())

    @property
    def has_lost(self) -> bool:
        """Whether `lost` has something to yield."""
        return bool(self._lost)

    def lost(self, now: float) -> Iterator[Input]:
        """Yield the loss of workers that know it, or have no session: now their work may run elsewhere."""
        lost, self._lost = self._lost, []
        for session in lost:
            if self._sessions.get(session.row.worker_id) is session:
                yield from self._gone(session, now, why="lost", is_counted=session.is_counted)

    def _gone(
        self, session: Session, now: float, *, why: Literal["stopped", "lost"], is_counted: bool
    ) -> Iterator[Input]:
        worker_id = session.row.worker_id
        del self._sessions[worker_id]
        heard_at = max(session.row.heard_at, session.heartbeat_at + self._offset if session.heartbeat else 0)
        self.rows[worker_id] = replace(
            session.row, is_taking=False, not_ready=None, heard_at=heard_at, gone_at=now + self._offset,
            gone_why=why, held_ids=tuple(sorted(self._held(worker_id))[:_HELD_MAX]),
        )  # fmt: skip
        yield WorkerGone(worker_id=worker_id, is_counted=is_counted)

    def _held(self, worker_id: str) -> Collection[int]:
        worker = self._state.workers.get(worker_id)
        return () if worker is None else worker.held.keys()

    # What goes to sessions.

    def may_be_offered(self, worker_id: str) -> bool:
        """Return whether it is known what a worker has; if not, its answer shows what to offer."""
        session = self._sessions.get(worker_id)
        return session is not None and session.is_answered

    def send(self, worker_id: str, body: LeaderBody) -> None:
        """Send a message to the present session of a worker. One that is gone was told before."""
        session = self._sessions.get(worker_id)
        if session is not None:
            self._send(session, body)

    def _send(self, session: Session, body: LeaderBody) -> None:
        self._out.append((session, body))

    def _dismiss(self, sender: Sender) -> None:
        message = ToSession(epoch=self.epoch, number=1, body=Dismissed())
        self._again.append(Publication(to=f"session {sender.worker_id} {sender.session}", body=message))

    def _publication(self, row: WorkerRow, message: ToSession) -> Publication:
        return Publication(to=f"session {row.worker_id} {row.session}", body=message)

    def take_out(self, now: float) -> list[Publication]:
        """Return what is to be sent, numbered, in order."""
        found, self._again = self._again, []
        for session, body in self._out:
            session.sent += 1
            message = ToSession(epoch=self.epoch, number=session.sent, body=body)
            session.unreceived.append(Sent(message, now))
            found.append(self._publication(session.row, message))
        self._out.clear()
        return found

    def take_stale(self) -> list[object]:
        """Return the sources of ends that changed nothing."""
        found, self.stale = self.stale, []
        return found

    def raise_epoch(self, epoch: int) -> None:
        """Go on under a new epoch: numbers begin again, and every worker says what it holds."""
        self.epoch = epoch
        pending, self._out, self._again = self._out, [], []
        for session in self._sessions.values():
            session.sent, session.unreceived, session.is_answered = 0, deque(), False
            self._send(session, Welcome())
        self._out += pending

    # Parts.

    def _see(self, each: Hello | Heartbeat | Report, now: float) -> None:
        """Note an epoch above this leader's; that of a known worker counts only with its secret."""
        epoch = each.epoch_seen
        if epoch <= self.epoch:
            return
        session = self._sessions.get(each.sender.worker_id)
        if session is not None and session.row.secret_hash != secret_hash(each.sender.secret):
            return
        if epoch > (now + self._offset) * 1_000_000 + _EPOCH_AHEAD_MAX:
            # Otherwise one message could raise the epoch to where no further one fits into a bigint.
            self.refused += 1
            return
        self.epoch_above = max(self.epoch_above, epoch)

    def _is_from(self, session: Session, sender: Sender) -> bool:
        if session.row.secret_hash == secret_hash(sender.secret):
            return True
        self.refused += 1
        return False

    def _advance(self, session: Session, committed: int) -> None:
        session.committed = max(session.committed, committed)
        while session.committed + 1 in session.above:
            session.committed += 1
        session.above = {number for number in session.above if number > session.committed}


def _later(message: ToSession, seconds: float) -> ToSession:
    """Return a message as it is sent again: meanwhile the time to live of what it offers has run."""
    body = message.body
    if not isinstance(body, Offers) or all(each.expires_in_seconds is None for each in body.offers):
        return message
    left = (
        each
        if each.expires_in_seconds is None
        else replace(each, expires_in_seconds=max(each.expires_in_seconds - seconds, 0.0))
        for each in body.offers
    )
    return replace(message, body=replace(body, offers=tuple(left)))


def _stored(instant: float | None, late_seconds: float = 0.0) -> float | None:
    """Return an instant in whole microseconds, as the ledger stores it."""
    return None if instant is None else round(instant + late_seconds, 6)


def _late_seconds(execution: Execution, started_at: float | None) -> float:
    """Return how late a worker's clock is: no attempt starts before it was granted."""
    granted_at = execution.scheduled_at
    return 0.0 if started_at is None or granted_at is None else max(granted_at - started_at, 0.0)
