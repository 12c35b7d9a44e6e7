"""Turns requests to stop into ends and into words to workers.

In: an execution id or an idempotency key, from a message or from HTTP. Out, after the commit: a completion
for what ended at once (P4), an `execution.cancel` to the worker of what runs. The statement `cancel` decides
every race. Next: `request_listener` and `service` send the messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstile.common.broker.delivery import Outgoing
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import cancel_message, completed_message
from turnstile.common.messages import CancelRequested, Error, ExecutionCancel, ExecutionCompleted
from turnstile.executor.decisions import Move
from turnstile.executor.queue_manager import QueueManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What became of a batch of requests to stop."""

    moves: list[Move]
    """Those that ended here."""
    found: list[Move]
    """One for each execution that exists, ended before, now, or asked to end."""
    messages: list[Outgoing]
    """To be told before the requests are acknowledged."""
    unknown: frozenset[int]
    """Places, in the batch, of those that name no execution."""
    held: frozenset[int]
    """Places of those for which nothing was done: another session holds the execution or its queue."""


class Canceller:
    """Stops executions wherever they stand."""

    def __init__(self, queue_manager: QueueManager) -> None:
        self._queue_manager = queue_manager

    async def cancel(self, requests: Sequence[CancelRequested]) -> Cancelled:
        """End what waits, and say whom to ask for the end of what runs. Raises Unavailable."""
        keys = [r.idempotency_key for r in requests if r.idempotency_key is not None]
        by_key = await self._queue_manager.ids_of(keys) if keys else {}
        ids = [_execution_id(r, by_key) for r in requests]
        asked = [(i, r.reason) for i, r in zip(ids, requests, strict=True) if i is not None]
        found, held = await self._queue_manager.cancel(asked) if asked else ([], frozenset[ExecutionId]())
        known = {move.execution_id for move in found}
        ended = [m for m in found if m.status is Status.CANCELLED and not is_terminal(m.previous_status)]
        running = [m for m in found if m.status is Status.RUNNING]
        reasons = dict(asked)
        return Cancelled(
            moves=ended,
            found=found,
            messages=[
                end_message(m, Error(type="Cancelled", message=reasons[m.execution_id] or "")) for m in ended
            ]
            + [stop_message(m) for m in running],
            unknown=frozenset(p for p, i in enumerate(ids) if i not in known and i not in held),
            held=frozenset(p for p, i in enumerate(ids) if i in held),
        )


def end_message(move: Move, error: Error) -> Outgoing:
    """Tell an end that no worker saw."""
    return completed_message(
        ExecutionCompleted(
            execution_id=move.execution_id,
            action_id=move.action_id,
            action_ref=move.action_ref,
            status=move.status,
            error=error,
            attempt=move.attempt,
            completed_at=move.moved_at,
        ),
        app_id="executor",
    )


def stop_message(move: Move) -> Outgoing:
    """Ask the worker that held this attempt to stop it."""
    assert move.worker_id is not None, "what ran had a worker"
    return stop_of(move.execution_id, move.attempt, worker_id=move.worker_id)


def stop_of(execution_id: int, attempt: int, *, worker_id: str) -> Outgoing:
    """Ask this worker to stop this attempt."""
    return cancel_message(ExecutionCancel(execution_id=execution_id, attempt=attempt), worker_id=worker_id)


def _execution_id(request: CancelRequested, by_key: dict[str, ExecutionId]) -> ExecutionId | None:
    if request.idempotency_key is not None:
        return by_key.get(request.idempotency_key)
    return None if request.execution_id is None else ExecutionId(request.execution_id)
