"""A simulated PostgreSQL behind the store port: turns applied to plain tables, behind the fence.

It writes by key as the ledger does, and refuses what the constraints of the tables refuse; each such refusal
is also a finding, because a correct leader never asks for it. A call may fail, commit without an answer, or
commit late, but never behind a takeover: that waits for statements that run, and terminates them after a
second. A failover goes back to what the standby had.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf
from random import Random
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from msgspec import structs

from tests.proof.simulation.loop import SimulatedLoop, Timeouts
from tests.proof.simulation.processes import WALL, Process
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.executor.leader.ports import (
    CancelRequest,
    DefinitionCommand,
    Deposed,
    InboxRow,
    NewestTurn,
    Outcome,
    OutcomeUnknown,
    Request,
    StoredRequest,
    TurnRefused,
)
from turnstile.executor.leader.records import (
    AdmittedRow,
    AttemptRow,
    Checkpoint,
    DefinitionRow,
    EarlyCancelRow,
    EndedRow,
    EventRow,
    GrantRow,
    Journal,
    Known,
    LiveRow,
    Loaded,
    PackedWaiting,
    ScheduleRow,
    SingletonRow,
    Turn,
    WaitingRow,
    WorkerRow,
)
from turnstile.stress.recording import NEVER

CALL_TIMEOUT_SECONDS: Final = 1.5
READ_SECONDS: Final = 0.0005
EPOCHS: Final = 1_000_000
"""Among so many a takeover draws the next epoch."""
TERMINATED_AFTER_SECONDS: Final = 1.0
IDS_OF_A_PACK: Final = 50
"""So few that one queue has several packs."""
UNSTORABLE: Final = b"\\u0000"
"""JSON with this cannot be stored."""


K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


class AttemptRecord:
    """One grant, as the tables show it; instants in true nanoseconds of commits."""

    __slots__ = ("attempt", "ended_at", "granted_at", "outcome", "started_at", "waiting_since", "worker_id")

    def __init__(self, attempt: int, worker_id: str, waiting_since: int, granted_at: int) -> None:
        self.attempt = attempt
        self.worker_id = worker_id
        self.waiting_since = waiting_since
        self.granted_at = granted_at
        self.started_at: float | None = None
        self.ended_at = NEVER
        self.outcome = ""

    def copy(self) -> "AttemptRecord":
        other = AttemptRecord(self.attempt, self.worker_id, self.waiting_since, self.granted_at)
        other.started_at, other.ended_at, other.outcome = self.started_at, self.ended_at, self.outcome
        return other


@dataclass(slots=True)
class Tables:
    """Everything that is committed."""

    epoch: int = 0
    executor_id: str = ""
    newest: NewestTurn | None = None
    counter: int = 0
    """The last one of the grants of the newest epoch."""
    admitted: dict[int, AdmittedRow] = field(default_factory=dict)
    ended: dict[int, EndedRow] = field(default_factory=dict)
    pending_ends: dict[int, EndedRow] = field(default_factory=dict)
    """Ends that are written when the row is free."""
    open_ids: dict[int, None] = field(default_factory=dict)
    by_delivery: dict[UUID, int] = field(default_factory=dict)
    by_idempotency: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, WaitingRow] = field(default_factory=dict)
    live: dict[int, LiveRow] = field(default_factory=dict)
    grants: dict[tuple[int, int], GrantRow] = field(default_factory=dict)
    numbers: set[tuple[int, int]] = field(default_factory=set)
    """All grants that were ever given."""
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    definitions: dict[tuple[str, str], DefinitionRow] = field(default_factory=dict)
    schedules: dict[str, ScheduleRow] = field(default_factory=dict)
    events: dict[int, EventRow] = field(default_factory=dict)
    early_cancels: dict[int, EarlyCancelRow] = field(default_factory=dict)
    singletons: dict[int, SingletonRow] = field(default_factory=dict)
    inbox: dict[int, InboxRow] = field(default_factory=dict)
    answers: dict[UUID, bytes] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    journals: list[Journal] = field(default_factory=list)
    low_id: int = 1
    reserved_id: int = 1
    instant_max: float = 0.0
    attempts: dict[int, list[AttemptRecord]] = field(default_factory=dict)
    created_at: dict[int, int] = field(default_factory=dict)
    completed_at: dict[int, int] = field(default_factory=dict)
    woken_at: dict[int, int] = field(default_factory=dict)
    """When what was delayed entered its queue, if it was not granted at once."""

    def copy(self) -> "Tables":
        """Return what a standby has at this moment. Rows never change, so the tables are copied only."""
        other = Tables()
        for each in fields(self):
            value = getattr(self, each.name)
            setattr(other, each.name, value.copy() if isinstance(value, dict | list | set) else value)
        other.attempts = {key: [one.copy() for one in own] for key, own in self.attempts.items()}
        return other


class Commit(NamedTuple):
    """A committed turn, and when: nanoseconds of true time, each later than the one before."""

    at: int
    turn: Turn
    is_missed: bool = False
    """A standby that took over afterwards did not receive it."""


class Statement:
    """A turn that is being written."""

    __slots__ = ("future", "is_answered", "is_over", "process", "turn")

    def __init__(self, process: Process, turn: Turn, future: "asyncio.Future[Any]") -> None:
        self.process = process
        self.turn = turn
        self.future = future
        self.is_answered = True
        """The answer reaches the caller."""
        self.is_over = False


class Postgres:
    """The database server."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.epochs = Random(0)
        self.tables = Tables()
        self.is_up = True
        self.frozen_until = 0.0
        self.cut: dict[Process, None] = {}
        self.clock_offset = 0.0
        self.singletons: Mapping[bytes, str] = {}
        """Names that requests have alone, by their parameters."""
        self.write_seconds = 0.002
        self.load_seconds = 0.005
        self.has_packs = False
        """What waits plainly is found in packs."""
        self.locked: dict[int, None] = {}
        """Executions whose row a foreign session holds."""
        self.running: dict[Statement, None] = {}
        self.takeovers: list[Callable[[], None]] = []
        """Updates of the fence that wait for running statements."""
        self.held_back: list[Callable[[], None]] = []
        """Statements behind these."""
        self.write_timeouts = Timeouts(loop, CALL_TIMEOUT_SECONDS)
        self.read_timeouts = Timeouts(loop, CALL_TIMEOUT_SECONDS + READ_SECONDS)
        self.leader: Process | None = None
        self.is_session_gone = False
        self.announced: dict[str, tuple[float, bool]] = {}
        self.standby: Tables | None = None
        self.has_failed_over = False
        self.findings: list[str] = []
        self.commits: list[Commit] = []
        self._last_at = 0
        self.turns = 0
        self.on_answer: Callable[[UUID, int, bytes], None] = lambda *_: None
        self.inbox_ids = 0
        self.used: set[tuple[int, int]] = set()
        """Grants that any leader ever committed, also what a failover lost."""
        self.issued: set[int] = set()
        """Epochs, also those that a failover lost."""

    def clock(self) -> float:
        """Return its wall clock."""
        return WALL + self.loop.now + self.clock_offset

    def latency(self) -> float:
        return 0.0002 + 0.0002 * self.random.random()

    def found(self, what: str) -> None:
        self.findings.append(f"at {self.loop.now:.4f} s: {what}")

    # Faults.

    def stop(self) -> None:
        """Everything that runs is rolled back, everything committed stays."""
        self.is_up = False
        self._abort(list(self.running))
        self.is_session_gone = True
        self.held_back.clear()
        self.takeovers.clear()

    def start(self) -> None:
        self.is_up = True

    def terminate(self, process: Process) -> None:
        """The sessions of a process are terminated."""
        self._abort([each for each in self.running if each.process is process])
        if self.leader is process:
            self.is_session_gone = True

    def freeze(self, seconds: float) -> None:
        """Nothing is executed for so long; it is executed afterwards, also for callers that gave up."""
        self.frozen_until = max(self.frozen_until, self.loop.now + seconds)

    def begin_standby(self) -> None:
        """From now on nothing reaches the standby any more."""
        self.standby = self.tables.copy()

    def fail_over(self) -> None:
        """The standby takes the place of the primary: what it had not received is lost."""
        assert self.standby is not None
        self.stop()
        self.tables, self.standby = self.standby, None
        self.has_failed_over = True
        self.unlock_rows()
        self.start()

    def lock_row(self, execution_id: int) -> None:
        self.locked[execution_id] = None

    def unlock_rows(self) -> None:
        self.locked.clear()
        pending = self.tables.pending_ends
        self.tables.ended.update(pending)
        pending.clear()

    def _abort(self, statements: Sequence[Statement]) -> None:
        for each in statements:
            each.is_over = True
            self.running.pop(each, None)
            if each.is_answered:
                each.process.answer(each.future, OutcomeUnknown("the session was terminated"))
        self._next_takeover()

    def reaches(self, process: Process) -> bool:
        return self.is_up and process not in self.cut

    def thawed(self, callback: Callable[..., None], *args: Any) -> bool:
        """Return whether it executes now; if not, it will call back."""
        if self.loop.now < self.frozen_until:
            self.loop.at(self.frozen_until, callback, *args)
            return False
        return True

    # Turns.

    def begin(self, statement: Statement, seconds: float) -> None:
        """A statement arrives: it takes its lock of the fence, or waits behind an update of it."""
        if not self.is_up or not self.thawed(self.begin, statement, seconds):
            return
        if self.takeovers:
            self.held_back.append(lambda: self.begin(statement, seconds))
            return
        turn = statement.turn
        tables = self.tables
        if (tables.epoch, tables.executor_id) != (turn.epoch, executor_of(statement.process)):
            self._answer(statement, Deposed(f"epoch {tables.epoch} of {tables.executor_id}"))
            return
        self.running[statement] = None
        self.loop.after(seconds, self._commit, statement)

    def _answer(self, statement: Statement, value: Any) -> None:
        if statement.is_answered and self.reaches(statement.process):
            self.loop.after(self.latency(), statement.process.answer, statement.future, value)

    def _commit(self, statement: Statement) -> None:
        if statement.is_over:
            return
        if not self.thawed(self._commit, statement):
            return
        del self.running[statement]
        value: Any = None
        try:
            self.apply(statement.turn)
        except TurnRefused as refused:
            value = refused
        else:
            self.turns += 1
            if self.leader is statement.process:
                self.is_session_gone = False
        self._answer(statement, value)
        self._next_takeover()

    def update_fence(self, update: Callable[[], None]) -> None:
        """Run an update of the fence once no statement holds its lock; after a second it terminates them."""
        if not self.is_up or not self.thawed(self.update_fence, update):
            return
        self.takeovers.append(update)
        if self.running:
            self.loop.after(TERMINATED_AFTER_SECONDS, self._terminate_for, update)
        else:
            self._next_takeover()

    def _terminate_for(self, update: Callable[[], None]) -> None:
        if update in self.takeovers:
            self._abort(list(self.running))

    def _next_takeover(self) -> None:
        if self.running or not self.takeovers:
            return
        waiting, self.takeovers = self.takeovers, []
        for update in waiting:
            update()
        held, self.held_back = self.held_back, []
        for each in held:
            each()

    # What a turn writes.

    def apply(self, turn: Turn) -> None:
        """Write a turn, all of it or nothing. Raises TurnRefused."""
        tables = self.tables
        unstorable = [row.id for row in turn.admitted if UNSTORABLE in row.parameters]
        unstorable += [row.id for row in turn.ended if row.result is not None and UNSTORABLE in row.result]
        if unstorable:
            raise TurnRefused("unsupported Unicode escape sequence", unstorable)
        broken = self._broken(turn)
        if broken is not None:
            # After a failover the row of the turn before may be lost, and that is how it shows.
            if not (self.has_failed_over and "follow" in broken):
                self.found(f"turn {turn.epoch}.{turn.number} violates a constraint: {broken}")
            raise TurnRefused(broken)
        at = self._last_at = max(round(self.loop.now * 1e9), self._last_at + 1)
        self.commits.append(Commit(at, turn, self.standby is not None))
        counters = [counter for granted in turn.granted for counter in granted.counters]
        tables.counter = max(counters, default=tables.counter if turn.number > 1 else 0)
        tables.newest = NewestTurn(epoch=turn.epoch, number=turn.number)
        if turn.admitted:
            self._admit(turn.admitted, at)
        for over in turn.attempts:
            self._end_attempt(over, at)
        for row in turn.ended:
            self._end(row, at)
        for granted in turn.granted:
            self._grant(granted, at)
        self._write_living(turn)
        self._write_rest(turn)
        for granted in turn.granted:
            worker = tables.workers.get(granted.worker_id)
            if worker is not None and worker.is_draining:
                self.found(f"{granted.worker_id} is granted something, and an operator drains it")
        if turn.at:
            tables.instant_max = max(tables.instant_max, turn.at)
        for row in turn.ended:
            if row.id in tables.waiting or row.id in tables.live:
                self.found(f"execution {row.id} ended and still has a row that a load would revive")
        self._check_singletons()

    def _check_singletons(self) -> None:
        """Check that the rows say which executions have a name, and that of each name one waits at most."""
        if not self.singletons:
            return
        tables = self.tables
        named = ((each, self.singletons.get(tables.admitted[each].parameters)) for each in tables.open_ids)
        living = {execution_id: name for execution_id, name in named if name is not None}
        rows = {row.execution_id: row.singleton for row in tables.singletons.values()}
        if rows != living:
            self.found(f"the singletons are {living}, and their rows {rows}")
        own = {execution_id: tables.attempts.get(execution_id) for execution_id in living}
        waiting = Counter(living[each] for each, of in own.items() if not of or of[-1].ended_at != NEVER)
        for singleton, count in waiting.items():
            if count > 1:
                self.found(f"{count} executions wait with the singleton {singleton}")

    def _broken(self, turn: Turn) -> str | None:
        """Return which constraint a turn violates."""
        tables, newest = self.tables, self.tables.newest
        last = newest.number if newest is not None and newest.epoch == turn.epoch else 0
        if turn.number != last + 1:
            return f"its number does not follow {last}"
        counters = [counter for granted in turn.granted for counter in granted.counters]
        if last and counters and min(counters) <= tables.counter:
            return f"its grants do not have new numbers: {min(counters)} after {tables.counter}"
        admitted = {row.id for row in turn.admitted}
        if len(admitted) != len(turn.admitted):
            return "an execution is admitted twice"
        reserved = max(tables.reserved_id, turn.reserved_id or 0)
        for row in turn.admitted:
            broken = self._broken_admission(row, reserved)
            if broken is not None:
                return broken
        return self._broken_end(turn, admitted)

    def _broken_admission(self, row: AdmittedRow, reserved: int) -> str | None:
        tables = self.tables
        if row.id in tables.admitted:
            return f"execution {row.id} exists"
        if row.id >= reserved:
            return f"execution {row.id} is not below the reserved id {reserved}"
        if row.delivery_key is not None and row.delivery_key in tables.by_delivery:
            return f"message key of execution {row.id} exists"
        if row.idempotency_key is not None and row.idempotency_key in tables.by_idempotency:
            return f"idempotency key {row.idempotency_key} of execution {row.id} exists"
        return None

    def _broken_end(self, turn: Turn, admitted: AbstractSet[int]) -> str | None:
        open_ids = self.tables.open_ids
        ended: set[int] = set()
        for row in turn.ended:
            if row.id in ended or (row.id not in admitted and row.id not in open_ids):
                return f"execution {row.id} is not open, and ends"
            if row.status not in TERMINAL:
                return f"execution {row.id} ends as {row.status}"
            ended.add(row.id)
        for granted in turn.granted:
            for execution_id, counter in zip(granted.execution_ids, granted.counters, strict=True):
                if (granted.epoch, counter) in self.used:
                    return f"grant {granted.epoch}.{counter} exists"
                if execution_id in ended or (execution_id not in admitted and execution_id not in open_ids):
                    return f"execution {execution_id} is not open, and is granted"
        for living in (*(row.id for row in turn.live), *(row.id for row in turn.waiting)):
            if living in ended or (living not in admitted and living not in open_ids):
                return f"execution {living} is not open, and gets a row"
        return None

    def _admit(self, rows: Sequence[AdmittedRow], at: int) -> None:
        tables = self.tables
        for row in rows:
            tables.admitted[row.id] = row
            tables.open_ids[row.id] = None
            tables.created_at[row.id] = at
            if row.delivery_key is not None:
                tables.by_delivery[row.delivery_key] = row.id
            if row.idempotency_key is not None:
                tables.by_idempotency[row.idempotency_key] = row.id

    def _grant(self, row: GrantRow, at: int) -> None:
        tables = self.tables
        tables.grants[row.epoch, row.counter] = row
        for execution_id, counter in zip(row.execution_ids, row.counters, strict=True):
            self.used.add((row.epoch, counter))
            own = tables.attempts.setdefault(execution_id, [])
            if own and own[-1].ended_at == NEVER:
                self.found(f"execution {execution_id} is granted while attempt {own[-1].attempt} is open")
            expires_at = tables.admitted[execution_id].expires_at
            if expires_at is not None and row.granted_at >= expires_at:
                self.found(
                    f"execution {execution_id} is granted at {row.granted_at}, and expired at {expires_at}"
                )
            since = own[-1].ended_at if own else tables.created_at[execution_id]
            if tables.admitted[execution_id].status is Status.DELAYED or (
                own and own[-1].outcome not in ("reclaimed", "returned")
            ):
                since = max(tables.woken_at.pop(execution_id, at), since)
            own.append(AttemptRecord(len(own) + 1, row.worker_id, since, at))

    def _end_attempt(self, row: AttemptRow, at: int) -> None:
        own = self.tables.attempts.get(row.execution_id)
        if not own or own[-1].ended_at != NEVER or own[-1].attempt != row.attempt:
            self.found(f"attempt {row.attempt} of execution {row.execution_id} ends, and is not its open one")
            return
        own[-1].ended_at, own[-1].outcome = at, row.outcome
        own[-1].started_at = row.started_at

    def _end(self, row: EndedRow, at: int) -> None:
        tables = self.tables
        if row.id in self.locked:
            self.tables.pending_ends[row.id] = row
        else:
            tables.ended[row.id] = row
        del tables.open_ids[row.id]
        tables.completed_at[row.id] = at
        own = tables.attempts.get(row.id)
        if own and own[-1].ended_at == NEVER:
            own[-1].ended_at, own[-1].outcome = at, "ended"
            own[-1].started_at = row.started_at
            if own[-1].attempt != row.attempt:
                self.found(
                    f"execution {row.id} ends in attempt {row.attempt}, its open one is {own[-1].attempt}"
                )

    def _write_living(self, turn: Turn) -> None:
        tables = self.tables
        for key in turn.grants_over:
            if tables.grants.pop(key, None) is None:
                self.found(f"grant row {key} is deleted and does not exist")
        for live in turn.live:
            before = tables.live.get(live.id)
            if live.status is Status.QUEUED and before is not None and before.status is Status.DELAYED:
                tables.woken_at[live.id] = self._last_at
            tables.live[live.id] = live
        for execution_id in turn.live_over:
            tables.live.pop(execution_id, None)
        for waiting in turn.waiting:
            tables.waiting[waiting.id] = waiting
        for execution_id in turn.waiting_over:
            tables.waiting.pop(execution_id, None)
        if turn.low_id is not None:
            tables.low_id = turn.low_id
        if turn.reserved_id is not None:
            tables.reserved_id = turn.reserved_id

    def _write_rest(self, turn: Turn) -> None:
        tables = self.tables
        tables.workers.update((row.worker_id, row) for row in turn.workers)
        _remove(tables.workers, [row.worker_id for row in turn.workers if row.gone_at is not None])
        tables.definitions.update(((row.kind, row.name), row) for row in turn.definitions)
        _remove(tables.definitions, [(row.kind, row.name) for row in turn.definitions if row.body is None])
        tables.schedules.update((row.name, row) for row in turn.schedules)
        _remove(tables.schedules, turn.schedules_over)
        tables.events.update((row.id, row) for row in turn.events)
        _remove(tables.events, turn.events_over)
        tables.early_cancels.update((row.id, row) for row in turn.early_cancels)
        _remove(tables.early_cancels, turn.early_cancels_over)
        tables.singletons.update((row.execution_id, row) for row in turn.singletons)
        _remove(tables.singletons, turn.singletons_over)
        for begun, cancelled in turn.inbox_begun:
            (row,) = (each for each in tables.inbox.values() if each.command_id == begun)
            tables.inbox[row.id] = structs.replace(row, cancelled=cancelled)
        for command_id in turn.inbox_over:
            if tables.inbox.pop(command_id, None) is None:
                self.found(f"command {command_id} is decided twice")
        for answered, body in turn.answers:
            tables.answers[answered] = body
            self.on_answer(answered, self._last_at, body)
        if turn.checkpoint is not None:
            tables.checkpoint = turn.checkpoint
            tables.journals = []
        elif turn.journal:
            tables.journals.append(turn.journal)

    # What is read.

    def loaded(self) -> Loaded:
        """Return what a load finds now."""
        tables = self.tables
        waiting = list(tables.waiting.values())
        found = tables.waiting
        for execution_id in tables.open_ids:
            if execution_id in found:
                continue
            if execution_id < tables.low_id:
                if execution_id not in tables.live:
                    self.found(f"execution {execution_id} is open, and a load does not find it")
                continue
            row = tables.admitted[execution_id]
            waiting.append(
                WaitingRow(
                    id=row.id, action_ref=row.action_ref, key=row.key, priority=row.priority,
                    queued_at=row.created_at, expires_at=row.expires_at,
                )
            )  # fmt: skip
        waiting.sort(key=lambda each: each.id)
        packed: list[PackedWaiting] = []
        if self.has_packs:
            packed, waiting = self._packed(waiting)
        return Loaded(
            epoch=tables.epoch, now=self.clock(), reserved_id=tables.reserved_id, low_id=tables.low_id,
            definitions=list(tables.definitions.values()), waiting=waiting, packed=packed,
            grants=list(tables.grants.values()), live=list(tables.live.values()),
            workers=list(tables.workers.values()), events=list(tables.events.values()),
            early_cancels=list(tables.early_cancels.values()), singletons=list(tables.singletons.values()),
            schedules=list(tables.schedules.values()),
            checkpoint=tables.checkpoint, journals=list(tables.journals),
            instant_max=tables.instant_max,
        )  # fmt: skip

    def _packed(self, waiting: Sequence[WaitingRow]) -> tuple[list[PackedWaiting], list[WaitingRow]]:
        """Pack what waits plainly below the low id, by blocks of ids and by queues; return also the rest."""
        tables, rest = self.tables, list[WaitingRow]()
        at_workers = {each for row in tables.grants.values() for each in row.execution_ids}
        packs: dict[tuple[int, str, str, int], PackedWaiting] = {}
        for row in waiting:
            if row.id >= tables.low_id or row.id in at_workers or row.id in tables.live:
                rest.append(row)
                continue
            place = row.id // IDS_OF_A_PACK, row.action_ref, row.key, row.priority
            pack = packs.get(place)
            if pack is None:
                pack = packs[place] = PackedWaiting(
                    action_ref=row.action_ref, key=row.key, priority=row.priority, ids=array("q"),
                    queued_at=array("d"), expires_at=array("d"),
                )  # fmt: skip
            pack.ids.append(row.id)
            pack.queued_at.append(row.queued_at)
            pack.expires_at.append(inf if row.expires_at is None else row.expires_at)
        return [packs[place] for place in sorted(packs)], rest

    def known(self, execution_id: int) -> Known:
        tables = self.tables
        row = tables.admitted[execution_id]
        ended = tables.ended.get(execution_id) or self.tables.pending_ends.get(execution_id)
        status: Status = row.status if ended is None else ended.status
        return Known(
            execution_id=row.id, request_hash=row.request_hash, status=status, action_ref=row.action_ref,
            key=row.key, priority=row.priority,
        )  # fmt: skip

    def put_in_inbox(self, command_id: UUID, body: "Request | CancelRequest | DefinitionCommand") -> None:
        """Commit a command, as HTTP does; the leader is woken."""
        if command_id in self.tables.answers or any(
            each.command_id == command_id for each in self.tables.inbox.values()
        ):
            return
        self.inbox_ids += 1
        row = InboxRow(id=self.inbox_ids, command_id=command_id, body=body)
        self.tables.inbox[row.id] = row
        if self.leader is not None and self.leader.is_alive:
            self.leader.wake()


def _remove(table: dict[K, Any], keys: Iterable[K]) -> None:
    for key in keys:
        table.pop(key, None)


def executor_of(process: Process) -> str:
    """Return the id of the executor that runs in a process."""
    return process.name


def _call(
    effect: "Callable[Concatenate[SimulatedStore, P], T]",
) -> "Callable[Concatenate[SimulatedStore, P], Coroutine[Any, Any, T]]":
    """Return the call that has this effect on the server, when it arrives there."""

    async def call(store: "SimulatedStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = await store._carry_out(effect.__name__, partial(effect, store, *args, **kwargs))
        return value

    return call


class SimulatedStore:
    """The database, as a port of one leader. Outcomes are planned by the names of its methods."""

    def __init__(self, server: Postgres, process: Process) -> None:
        self._server = server
        self._process = process

    # Writing.

    async def write(self, turn: Turn) -> None:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        loop = server.loop
        future: asyncio.Future[None] = loop.create_future()
        outcome = process.next_outcome("write")
        if not server.reaches(process):
            await self._find_out()
        statement = Statement(process, turn, future)
        seconds = server.write_seconds * (0.7 + 0.6 * server.random.random()) + 4e-6 * (
            len(turn.admitted) + len(turn.ended)
        )
        arrival = loop.now + server.latency()
        server.write_timeouts.watch(future, self._give_up)
        match outcome:
            case None:
                loop.at(arrival, server.begin, statement, seconds)
            case ("lost", _):
                loop.after(0.005, self._give_up, future)
            case ("unanswered", _):
                statement.is_answered = False
                loop.at(arrival, server.begin, statement, seconds)
                loop.after(seconds + 0.005, self._give_up, future)
            case ("running", late):
                statement.is_answered = False
                loop.at(arrival, server.begin, statement, late)
                loop.after(0.005, self._give_up, future)
            case ("queued", late):
                statement.is_answered = False
                loop.after(late, server.begin, statement, seconds)
                loop.after(0.005, self._give_up, future)
            case _:
                loop.at(arrival, server.begin, statement, outcome[1])
        await future

    def _give_up(self, future: "asyncio.Future[Any]") -> None:
        if not future.done():
            self._process.answer(future, OutcomeUnknown("no answer"))

    async def _find_out(self) -> None:
        """Find out that no connection can be had; a partition shows after a time-out only."""
        process, server = self._process, self._server
        future: asyncio.Future[None] = server.loop.create_future()
        seconds = CALL_TIMEOUT_SECONDS if server.is_up else 0.005
        server.loop.after(seconds, process.answer, future, OutcomeUnknown("no connection"))
        await future

    async def take_over(self, executor_id: str, *, above: int = 0, only_if_leading: bool = False) -> int:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        loop = server.loop
        future: asyncio.Future[int] = loop.create_future()
        outcome = process.next_outcome("take_over")
        if not server.reaches(process):
            await self._find_out()
        is_answered = outcome is None

        def update() -> None:
            tables = server.tables
            if only_if_leading and tables.executor_id != executor_id:
                value: Any = Deposed(f"epoch {tables.epoch} of {tables.executor_id}")
            else:
                least = max(tables.epoch, above, int(server.clock() * 1_000_000))
                value = tables.epoch = least + 1 + server.epochs.randrange(EPOCHS)
                if value in server.issued:
                    server.found(f"epoch {value} is issued again")
                server.issued.add(value)
                tables.executor_id = executor_id
                server.leader, server.is_session_gone = process, not process.is_alive
            if is_answered and server.reaches(process):
                loop.after(server.latency(), process.answer, future, value)

        loop.after(CALL_TIMEOUT_SECONDS + TERMINATED_AFTER_SECONDS, self._give_up, future)
        match outcome:
            case ("lost", _):
                pass
            case ("queued" | "running", late):
                loop.after(late, server.update_fence, update)
            case _:
                loop.after(server.latency(), server.update_fence, update)
        if not is_answered:
            loop.after(0.01, self._give_up, future)
        return await future

    # Calls that take effect when they arrive.

    async def _carry_out(self, name: str, effect: Callable[[], Any], seconds: float = READ_SECONDS) -> Any:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        loop = server.loop
        future: asyncio.Future[Any] = loop.create_future()
        outcome = process.next_outcome(name)
        if not server.reaches(process):
            await self._find_out()
        if outcome is not None and outcome[0] == "lost":
            raise OutcomeUnknown("no connection")

        def arrive() -> None:
            if not server.is_up or not server.thawed(arrive):
                return
            try:
                value = effect()
            except Exception as error:  # noqa: BLE001 - the answer of the port
                value = error
            if server.reaches(process):
                loop.after(seconds * (0.7 + 0.6 * server.random.random()), process.answer, future, value)

        if seconds == READ_SECONDS:
            server.read_timeouts.watch(future, self._give_up)
        else:
            loop.after(CALL_TIMEOUT_SECONDS + seconds, self._give_up, future)
        loop.after(server.latency(), arrive)
        return await future

    async def load(self, epoch: int) -> Loaded:
        server = self._server

        def effect() -> Loaded:
            tables = server.tables
            if (tables.epoch, tables.executor_id) != (epoch, executor_of(self._process)):
                raise Deposed(f"epoch {tables.epoch} of {tables.executor_id}")
            return server.loaded()

        seconds = server.load_seconds + 3e-6 * len(server.tables.open_ids)
        loaded: Loaded = await self._carry_out("load", effect, seconds)
        return loaded

    @_call
    def announce(self, executor_id: str, *, has_broker: bool) -> bool:
        server = self._server
        server.announced[executor_id] = server.loop.now, has_broker
        return any(
            has and server.loop.now - at < 2.0
            for name, (at, has) in server.announced.items()
            if name != executor_id
        )

    @_call
    def resign(self) -> None:
        if self._server.leader is self._process:
            self._server.is_session_gone = True

    @_call
    def newest_turn(self) -> NewestTurn | None:
        return self._server.tables.newest

    @_call
    def leader_seen(self) -> tuple[NewestTurn | None, bool]:
        leader = self._server.leader
        is_gone = leader is None or not leader.is_alive or self._server.is_session_gone
        return self._server.tables.newest, is_gone

    @_call
    def look_up(
        self, delivery_keys: Sequence[UUID], idempotency_keys: Sequence[str], execution_ids: Sequence[int]
    ) -> Mapping[UUID | str | int, Known]:
        tables = self._server.tables
        ids: dict[UUID | str | int, int] = {
            **{key: tables.by_delivery[key] for key in delivery_keys if key in tables.by_delivery},
            **{key: tables.by_idempotency[key] for key in idempotency_keys if key in tables.by_idempotency},
            **{each: each for each in execution_ids if each in tables.admitted},
        }
        return {key: self._server.known(execution_id) for key, execution_id in ids.items()}

    @_call
    def inbox(self, count: int) -> Sequence[InboxRow]:
        return [row for _, row in sorted(self._server.tables.inbox.items())[:count]]

    @_call
    def outcomes(self, execution_ids: Sequence[int]) -> Mapping[int, Outcome]:
        tables = self._server.tables
        rows = [tables.ended.get(each) or tables.pending_ends.get(each) for each in execution_ids]
        return {
            row.id: Outcome(
                execution_id=row.id, action_ref=tables.admitted[row.id].action_ref, status=row.status,
                attempt=row.attempt, result=row.result, error=row.error, completed_at=row.completed_at,
            )
            for row in rows
            if row is not None
        }  # fmt: skip

    @_call
    def traces_of(self, execution_ids: Sequence[int]) -> Mapping[int, str]:
        rows = self._server.tables.admitted
        found = {each: rows[each].traceparent for each in execution_ids if each in rows}
        return {each: trace for each, trace in found.items() if trace is not None}

    @_call
    def events(self, after_id: int) -> Sequence[EventRow]:
        rows = self._server.tables.events
        return [rows[each] for each in sorted(rows) if each > after_id]

    @_call
    def requests_of(self, execution_ids: Sequence[int]) -> Mapping[int, StoredRequest]:
        rows = [(each, self._server.tables.admitted.get(each)) for each in execution_ids]
        return {
            each: StoredRequest(parameters=row.parameters, metadata=row.metadata, traceparent=row.traceparent)
            for each, row in rows
            if row is not None
        }
