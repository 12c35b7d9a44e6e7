"""What people ask for over HTTP, besides submitting: each one statement, told after its commit.

In: ids, definitions, who asks. Out: what became of it. The messages that follow go out behind the answer: the
rows are committed, and the watchdog tells again what is lost (P4, P7). Next: `queue_manager` and `cancelling`
decide, `hand_over` tells.
"""

from collections.abc import Sequence
from typing import Final

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.messages import CancelRequested, Error
from turnstile.executor.cancelling import Canceller, end_message
from turnstile.executor.decisions import Accepted, Deletion, Grants, Move, Retried
from turnstile.executor.hand_over import HandOver
from turnstile.executor.queue_manager import QueueManager

_DELETED: Final = "its action was deleted"


class Operations:
    """Safe to share between tasks. All raise Unavailable."""

    def __init__(
        self,
        database: Database,
        queue_manager: QueueManager,
        hand_over: HandOver,
    ) -> None:
        self._database = database
        self._queue_manager = queue_manager
        self._canceller = Canceller(queue_manager)
        self._hand_over = hand_over

    async def put_actions(self, definitions: Sequence[ActionDefinition], changed_by: str) -> None:
        """Store definitions, and who changed them."""
        grants = await self._queue_manager.put_actions(definitions, changed_by=changed_by)
        reached(CrashPoint.ACTIONS_PUT)
        self._offer(grants)

    async def delete_action(self, ref: str, cancel_max: int, changed_by: str) -> Deletion | None:
        """Delete an action that at most so many wait for; None: there is no such action."""
        deletion = await self._queue_manager.delete_action(
            ref, cancel_max=cancel_max, reason=_DELETED, changed_by=changed_by
        )
        if deletion is not None:
            ended = [move for move in deletion.ended if move.status is Status.CANCELLED]
            self._hand_over.announce_moves(ended)
            error = Error(type="Cancelled", message=_DELETED)
            self._tell([end_message(move, error) for move in ended])
        return deletion

    async def cancel(self, execution_ids: Sequence[ExecutionId], reason: str | None) -> list[Move]:
        """End what has not started, ask the workers of what runs; what does not exist is left out.

        Raises Unavailable where another database session holds one of them; the others are ended.
        """
        cancelled = await self._canceller.cancel(
            [CancelRequested(execution_id=execution_id, reason=reason) for execution_id in execution_ids]
        )
        reached(CrashPoint.CANCELLATION_DECIDED)
        self._hand_over.announce_moves(cancelled.moves)
        self._tell(cancelled.messages)
        if cancelled.held:
            ids = [execution_ids[place] for place in sorted(cancelled.held)]
            raise Unavailable(f"execution_id: another database session holds {ids[:20]}, or their queues")
        return cancelled.found

    async def retry(
        self, requests: Sequence[tuple[ExecutionId, str | None]], traceparent: str | None
    ) -> list[Retried]:
        """Ask for ended executions again, each under a key or none; one answer each, in that order."""
        retried, grants = await self._queue_manager.retry(requests, traceparent=traceparent)
        self._hand_over.announce_admitted(
            (one.action_ref, one.verdict)
            for one in retried
            if one.action_ref is not None and isinstance(one.verdict, Accepted) and not one.verdict.duplicate
        )
        self._offer(grants)
        return retried

    async def drain_worker(self, worker_id: str) -> bool:
        """Ask a worker to leave; False: there is none that could."""
        return bool(await self._database.fetchval("SELECT turnstile.drain_worker($1)", worker_id))

    def _offer(self, grants: Grants) -> None:
        if grants.granted or grants.more_queue_ids:
            self._hand_over.tell_later(self._hand_over.offer(grants), count=len(grants.granted))

    def _tell(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            self._hand_over.tell_later(self._hand_over.tell(messages), count=len(messages))
