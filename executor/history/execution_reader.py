"""Reads executions as the HTTP API shows them: from their rows, and from the leader why they wait.

In: ids and filters. Out: schemas. The rows say what an execution is: each turn writes them before the leader
answers. The leader says what only its memory has: position, reason, estimate. Without its answer the page
shows what the rows say, and why the rest is missing.
"""

from collections.abc import Mapping
from typing import Any, Final

from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.asking.asker import Asker
from turnstile.executor.health import Health, broker_trouble
from turnstile.executor.history.executions import Executions, Record, step
from turnstile.executor.queries.blocker import blocker
from turnstile.executor.queries.explained import estimated_start, instant, path, waiting_on
from turnstile.executor.queries.schemas import (
    ExecutionDetail,
    GatedExecutionDetail,
    GateStep,
    NotDue,
    OutOfReach,
    StoredExecution,
    WaitingOn,
    WaitingOnRate,
    WaitingOnResource,
    WaitingOnTotal,
)
from turnstile.executor.queries.stopping import Run
from turnstile.executor.questions.protocol import Execution, Explain, Explained, LiveExecution, Unanswered

_READ_MAX: Final = 3
"""How often a row is read if the execution moves on between its reading and the answer."""
_WAITING: Final = frozenset({Status.DELAYED, Status.QUEUED, Status.SCHEDULED})


class ExecutionReader:
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    def __init__(
        self, executions: Executions, asker: Asker, health: Health, *, stop_timeout_seconds: float
    ) -> None:
        """`stop_timeout_seconds`: of `TURNSTILE_STOP_TIMEOUT`, for `Run.stopping`."""
        self._executions, self._asker, self._health = executions, asker, health
        self._stop_timeout_seconds = stop_timeout_seconds

    async def execution(self, execution_id: ExecutionId) -> ExecutionDetail | None:
        """Return one execution with its position, the reason why it waits, and its attempts."""
        record = await self._executions.execution(execution_id)
        for _ in range(_READ_MAX - 1):
            if record is None or record.stored.status not in _WAITING:
                break
            explained = await self._explained(record.stored)
            if isinstance(explained, Unanswered):
                return self._detail(record, on=_unexplained(record.stored, explained))
            if explained.live is not None and explained.live.status is record.stored.status:
                return self._explained_detail(record, explained)
            # It has moved on since its row was read.
            record = await self._executions.execution(execution_id)
        return None if record is None else self._detail(record, on=None)

    async def _explained(self, stored: StoredExecution) -> Explained | Unanswered:
        named = Execution(
            id=stored.id,
            action_ref=stored.action_ref,
            key=stored.concurrency_key or "",
            priority=stored.priority,
        )
        answer = await self._asker.ask(Explain(executions=(named,), with_estimate=True))
        return answer if isinstance(answer, Unanswered) else answer.body[0]

    def _explained_detail(self, record: Record, explained: Explained) -> ExecutionDetail:
        explanation = explained.explanation
        if explanation is None or explanation.waiting_on is None:
            return self._detail(record, on=None, live=explained.live)
        trouble = broker_trouble(self._health)
        is_in_queue = explanation.position is not None
        return self._detail(
            record,
            on=waiting_on(explanation.waiting_on, trouble),
            live=explained.live,
            position=explanation.position,
            queue_length=explanation.queue_length if is_in_queue else None,
            path=path(explanation),
            estimated_start=None if trouble else estimated_start(explained.estimate),
        )

    def _detail(
        self, record: Record, *, on: WaitingOn | None, live: LiveExecution | None = None, **more: Any
    ) -> ExecutionDetail:
        attempts = list(record.attempts)
        fields: dict[str, Any] = {
            **_stored(record),
            "position": None,
            "queue_length": None,
            "waiting_on": on,
            "blocker": None if on is None else blocker(on, record.stored, record.read_at),
            "estimated_start": None,
            "stopping": _run(record).stopping(self._stop_timeout_seconds),
            "progress": attempts[-1].progress if attempts else None,
            "attempts": attempts,
            **more,
        }
        steps = list(record.gates) if live is None else _steps(live, on)
        return GatedExecutionDetail(**fields, gates=steps) if steps else ExecutionDetail(**fields)


def _stored(record: Record) -> Mapping[str, Any]:
    return {name: getattr(record.stored, name) for name in StoredExecution.model_fields}


def _run(record: Record) -> Run:
    return Run(
        started_at=record.stored.started_at,
        completed_at=record.stored.completed_at,
        timeout_seconds=record.timeout_seconds,
        cancel_requested_at=record.cancel_requested_at,
        cancel_reason=record.cancel_reason,
        stop_grace_seconds=record.stop_grace_seconds,
        read_at=record.read_at,
    )


def _unexplained(stored: StoredExecution, why: Unanswered) -> WaitingOn:
    if stored.status is Status.DELAYED:
        return NotDue(run_at=stored.run_at)
    return OutOfReach(part="leader", message=why.message)


def _steps(live: LiveExecution, on: WaitingOn | None) -> list[GateStep]:
    """Return the gates that an execution has passed, and where it waits.

    In its queue it has passed none: it passes the queue together with the gate that keeps it there.
    """
    steps = [step(*each) for each in live.gates]
    if live.status is not Status.QUEUED or not live.is_gated:
        return steps
    reached_at = steps[-1].passed_at if steps else None
    if not steps:
        queued_at = instant(live.queued_at)
        steps.append(GateStep(gate="queue", units=1, arrived_at=queued_at, passed_at=None))
    match on:
        case WaitingOnResource() | WaitingOnTotal():
            gate, units = on.gate, on.units
        case WaitingOnRate():
            gate, units = on.gate, 1
        case _:
            return steps
    return [*steps, GateStep(gate=gate, units=units, arrived_at=reached_at, passed_at=None)]
