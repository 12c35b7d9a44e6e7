"""Turns decisions into the rows of a turn, and remembers what the next turns must write.

An execution that ends within about a second of its admission has no row but its record; one that lives
longer gets a `WaitingRow`, and the low id rises past it (LEADER 4). One row has all that a worker was
granted in a turn.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded
from turnstile.executor.leader.loading import Memory, clocks_of, windows_of
from turnstile.executor.leader.ports import Request
from turnstile.executor.leader.records import (
    AdmittedRow,
    AttemptRow,
    Checkpoint,
    ClockChange,
    EndedRow,
    GrantRow,
    Journal,
    LiveRow,
    LogRow,
    ProgressRow,
    WaitingRow,
)
from turnstile.executor.queue_manager.decisions import Admitted, AttemptOver, Decisions, Finished
from turnstile.executor.queue_manager.state import Execution, State

_YOUNG_SECONDS: Final = 1.0
"""What lives shorter needs no row of its own."""
_OLD_MAX: Final = 1000
"""How many executions get a row of their own in one turn."""
_JOURNALS_MAX: Final = 500
"""Turns with a journal between two checkpoints."""
_RESERVED: Final = 10_000
"""Ids of one reserved block."""


@dataclass(slots=True)
class Rows:
    """The fields of a `Turn` that decisions lead to."""

    admitted: list[AdmittedRow] = field(default_factory=list)
    ended: list[EndedRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    logs: list[LogRow] = field(default_factory=list)
    progress: list[ProgressRow] = field(default_factory=list)
    granted: list[GrantRow] = field(default_factory=list)
    grants_over: list[tuple[int, int]] = field(default_factory=list)
    live: list[LiveRow] = field(default_factory=list)
    live_over: list[int] = field(default_factory=list)
    waiting: list[WaitingRow] = field(default_factory=list)
    waiting_over: list[int] = field(default_factory=list)
    low_id: int | None = None
    reserved_id: int | None = None
    journal: Journal = field(default_factory=Journal)
    checkpoint: Checkpoint | None = None

    def fields(self) -> dict[str, Any]:
        """Return them by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def rows_of(state: State, memory: Memory, out: Decisions) -> Rows:
    """Return the rows of a turn. Called once per turn, after the decision: it changes the memory."""
    rows = Rows()
    for each in out.admitted:
        rows.admitted.append(_admitted_row(each, state.now))
        memory.recent.append(_waiting_row(each))
    _end_grants(memory, rows, [over.id for over in out.attempts])
    rows.attempts = [
        AttemptRow(
            execution_id=over.id, attempt=over.attempt, outcome=over.outcome, worker_id=over.worker_id,
            scheduled_at=over.scheduled_at, started_at=over.started_at, ended_at=over.ended_at,
            error=None if over.report is None else report_of(over.report.source).error,
        )
        for over in out.attempts
    ]  # fmt: skip
    _add_reported(rows, out)
    rows.granted = list(_grant_rows(state, out, memory))
    _end_grants(memory, rows, [finished.id for finished in out.finished])
    for finished in out.finished:
        rows.ended.append(ended_row(finished))
        if finished.id < memory.low_id:
            rows.waiting_over.append(finished.id)
    for execution_id, execution in out.changed.items():
        if execution is None:
            rows.live_over.append(execution_id)
        else:
            rows.live.append(live_row(execution))
    _age(state, memory, rows)
    _journal(state, memory, rows, out)
    if state.next_id + _RESERVED // 2 > memory.reserved_id:
        memory.reserved_id = rows.reserved_id = state.next_id + _RESERVED
    return rows


def report_of(source: Any) -> AttemptEnded:
    """Return the report behind an input `Ended`: its source is the delivery that brought it."""
    report = source.body.body
    assert isinstance(report, AttemptEnded)
    return report


def _add_reported(rows: Rows, out: Decisions) -> None:
    """Add what ends brought of the logs of their attempts, and the last progress of each."""
    ended: Iterable[AttemptOver | Finished] = chain(out.attempts, out.finished)
    for each in ended:
        if each.report is None:
            continue
        report = report_of(each.report.source)
        if report.log:
            text = _storable(report.log)
            piece = LogRow(execution_id=each.id, attempt=each.attempt, start=report.log_start, text=text)
            rows.logs.append(piece)
        if (last := report.progress) is not None:
            rows.progress.append(
                ProgressRow(
                    execution_id=each.id, attempt=each.attempt, at=last.at, done=last.done, total=last.total,
                    message=None if last.message is None else _storable(last.message),
                )
            )  # fmt: skip


def _storable(text: str) -> str:
    """Return a text without the one character that PostgreSQL cannot store: it must not refuse the end."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _admitted_row(each: Admitted, now: float) -> AdmittedRow:
    delivery_key, request = each.source.delivery_key, each.source.request
    assert isinstance(request, Request)
    return AdmittedRow(
        id=each.id, action_ref=request.action_ref, key=each.queue.key, priority=each.priority,
        status=Status.QUEUED if each.due_at is None else Status.DELAYED, created_at=now,
        run_at=request.run_at, expires_at=_finite(each.expires_at), timeout_seconds=request.timeout_seconds,
        parameters=request.parameters, request_hash=request.request_hash, delivery_key=delivery_key,
        idempotency_key=request.idempotency_key, callback_url=request.callback_url, metadata=request.metadata,
        traceparent=request.traceparent, retry_of=request.retry_of,
        body_id=request.body_id,
    )  # fmt: skip


def _finite(instant: float) -> float | None:
    return None if instant == inf else instant


def _waiting_row(each: Admitted) -> WaitingRow:
    return WaitingRow(
        id=each.id, action_ref=each.queue.action.ref, key=each.queue.key, priority=each.priority,
        queued_at=each.queued_at, expires_at=_finite(each.expires_at),
    )  # fmt: skip


def _grant_rows(state: State, out: Decisions, memory: Memory) -> Iterator[GrantRow]:
    """Yield one row for each worker that was granted something that it still has after this turn."""
    by_worker: dict[str, list[tuple[int, Grant]]] = {}
    for each in out.granted:
        by_worker.setdefault(each.worker.id, []).append((each.id, each.grant))
    for worker_id, grants in by_worker.items():
        row = GrantRow(
            epoch=state.epoch, counter=grants[0][1].counter, worker_id=worker_id, granted_at=state.now,
            execution_ids=tuple(execution_id for execution_id, _ in grants),
            counters=tuple(grant.counter for _, grant in grants),
        )  # fmt: skip
        key = row.epoch, row.counter
        memory.left_of[key] = len(grants)
        for execution_id, _ in grants:
            memory.grant_of[execution_id] = key
        yield row


def _end_grants(memory: Memory, rows: Rows, execution_ids: Iterable[int]) -> None:
    """Count what is left of grant rows; one with nothing left is deleted."""
    for execution_id in execution_ids:
        key = memory.grant_of.pop(execution_id, None)
        if key is not None:
            memory.left_of[key] -= 1
            if not memory.left_of[key]:
                del memory.left_of[key]
                rows.grants_over.append(key)


def ended_row(each: Finished) -> EndedRow:
    """Return the end of an execution: what the report says, and where the leader decided otherwise, that."""
    report = None if each.report is None else report_of(each.report.source)
    error = each.error
    if error is None and report is not None:
        error = report.error
    return EndedRow(
        id=each.id, status=each.status, attempt=each.attempt, failures=each.failures, reclaims=each.reclaims,
        worker_id=each.worker_id, queued_at=each.queued_at, scheduled_at=each.scheduled_at,
        started_at=each.started_at, completed_at=each.completed_at,
        result=None if report is None else report.result, error=error, passages=each.passages,
    )  # fmt: skip


def live_row(execution: Execution) -> LiveRow:
    """Return all about an execution as it is now."""
    queue = execution.queue
    return LiveRow(
        id=execution.id, action_ref=queue.action.ref, key=queue.key, priority=execution.priority,
        status=execution.status, attempt=execution.attempt, failures=execution.failures,
        reclaims=execution.reclaims, queued_at=execution.queued_at, expires_at=_finite(execution.expires_at),
        due_at=execution.due_at, ttl_seconds=execution.ttl_seconds, timeout_seconds=execution.timeout_seconds,
        cancel_reason=execution.cancel_reason, cancel_requested_at=execution.cancel_requested_at,
        grant=execution.grant,
        worker_id=None if execution.worker is None else execution.worker.id,
        scheduled_at=execution.scheduled_at, started_at=execution.started_at,
        held=tuple((gate.definition.name, gate.holders[execution]) for gate in execution.held_at),
        is_holding=execution in queue.action.holding, is_impatient=execution.is_impatient,
        passages=execution.passages,
    )  # fmt: skip


def _age(state: State, memory: Memory, rows: Rows) -> None:
    """Give what lives for longer than a second a row of its own, and raise the low id past it."""
    recent = memory.recent
    count = 0
    while count < len(recent) and count < _OLD_MAX and recent[count].queued_at <= state.now - _YOUNG_SECONDS:
        row = recent[count]
        if _lives(state, row):
            rows.waiting.append(row)
        count += 1
    if count:
        memory.low_id = rows.low_id = recent[count - 1].id + 1
        del recent[:count]


def _lives(state: State, row: WaitingRow) -> bool:
    if row.id in state.executions:
        return True
    queue = state.queue(row.action_ref, row.key)
    waiting = None if queue is None else queue.waiting.get(row.priority)
    return waiting is not None and waiting.find(row.id) is not None


def _journal(state: State, memory: Memory, rows: Rows, out: Decisions) -> None:
    """Write what many turns change: into the turn, and now and then as a checkpoint."""
    totals: dict[str, tuple[int, int]] = {}
    for admitted in out.admitted:
        ref = admitted.queue.action.ref
        enqueued, completed = totals.get(ref, (0, 0))
        totals[ref] = enqueued + 1, completed
    for finished in out.finished:
        ref = finished.queue.action.ref
        enqueued, completed = totals.get(ref, (0, 0))
        totals[ref] = enqueued, completed + 1
    ended = tuple(finished.id for finished in out.finished if finished.report is not None)
    rows.journal = Journal(
        totals=totals, clocks=tuple(_clock_changes(out)), ended=ended,
        starts={window.name: (out.now,) * count for window, count in out.started.items()},
    )  # fmt: skip
    if rows.journal:
        memory.journals += 1
    if memory.journals > _JOURNALS_MAX or out.has_forgotten:
        memory.journals = 0
        rows.checkpoint = checkpoint_of(state, ended)


def _clock_changes(out: Decisions) -> Iterator[ClockChange]:
    for clock, charged in out.charged.items():
        by_priority: dict[int, dict[str, int | None]] = {}
        for priority, flow in charged:
            by_priority.setdefault(priority, {})[flow] = clock.finish.get((priority, flow))
        for priority, finish in by_priority.items():
            virtual = clock.virtual.get(priority, 0)
            yield ClockChange(gate=clock.name, priority=priority, virtual=virtual, finish=finish)


def checkpoint_of(state: State, ended: tuple[int, ...] = ()) -> Checkpoint:
    """Return all of what journals change."""
    clocks: list[ClockChange] = []
    for clock in clocks_of(state):
        for priority, virtual in clock.virtual.items():
            finish: dict[str, int | None] = {
                flow: tag for (of, flow), tag in clock.finish.items() if of == priority and tag > virtual
            }
            clocks.append(ClockChange(gate=clock.name, priority=priority, virtual=virtual, finish=finish))
    totals = {ref: (action.enqueued, action.completed) for ref, action in state.actions.items()}
    return Checkpoint(
        totals={**state.retired, **totals},
        clocks=tuple(clocks),
        starts={window.name: tuple(window.instants) for window in windows_of(state)},
        ended=ended,
    )
