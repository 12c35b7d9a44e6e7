"""What HTTP may do with executions, actions, resources, pools and workers.

In: requests, ids, definitions, and the caller's name. Out: the result. A definition is stored in one
statement and one commit; what it allows to start is granted by the next ones. Admissions and retries commit
batch by batch, so an error may leave the first batches done. The messages that follow are published in the
background: the rows are committed, and the watchdog republishes what is lost (P4, P7).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

import asyncpg

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.batcher import Batcher
from turnstile.common.broker.message import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.messages import CancelRequested, Error
from turnstile.executor.callers import Caller
from turnstile.executor.cancellation import Canceller
from turnstile.executor.completions import completion_of
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.results import (
    Accepted,
    Admission,
    Deletion,
    KeyChange,
    Move,
    ResourceDeletion,
    Retried,
    Verdict,
    blocked_verdict,
    is_blocked,
)
from turnstile.executor.slot_grants import QueueManager

BLOCKED_SECONDS: Final = 2.0
"""How long a submission waits for a queue that another session holds."""
_DELETED: Final = "its action was deleted"
_BLOCKED_MAX: Final = 1000
_RETRY_BATCH_MAX: Final = 100
_PAUSE_SECONDS: Final = 0.1
_ANSWER_TIMEOUT_SECONDS: Final = 30.0
_UNKNOWN: Final = "all or part of it may be done: check, or repeat it with the same idempotency key"


@asynccontextmanager
async def answer_deadline() -> AsyncIterator[None]:
    """Bound a change; raises Unavailable, which says whether the change may be done."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable(f"no answer in time; {_UNKNOWN}") from None
    except Overloaded as error:
        raise Overloaded(f"{error}; nothing was done, repeat it later") from error
    except Unavailable as error:
        raise Unavailable(f"{error}; {_UNKNOWN}") from error


class Operations:
    """Safe to share between tasks. All operations raise Unavailable."""

    def __init__(self, queue_manager: QueueManager, dispatcher: Dispatcher) -> None:
        self._protocol = queue_manager.protocol
        self._queue_manager = queue_manager
        self._canceller = Canceller(queue_manager)
        self._dispatcher = dispatcher

    async def admit(self, admissions: Sequence[Admission]) -> list[Verdict]:
        """Admit in the order given; one verdict each."""
        verdicts: list[Verdict] = []
        while len(verdicts) < len(admissions):
            undecided = admissions[len(verdicts) :]
            decided, grants = await self._queue_manager.admit(undecided)
            reached(CrashPoint.SUBMISSION_ADMITTED)
            self._dispatcher.announce_admitted(
                (admission.action_ref, verdict)
                for admission, verdict in zip(undecided, decided, strict=False)
                if isinstance(verdict, Accepted) and not verdict.duplicate
            )
            self._dispatcher.dispatch_in_background(grants)
            verdicts += decided
        return verdicts

    async def put_actions(self, definitions: Sequence[ActionDefinition], changed_by: Caller) -> None:
        """Store definitions, and who changed them. Raises Refusal."""
        grants = await self._queue_manager.put_actions(definitions, changed_by=changed_by)
        reached(CrashPoint.ACTIONS_PUT)
        self._dispatcher.dispatch_in_background(grants)

    async def set_key(
        self, ref: str, key: str, settings: KeySettings | None, changed_by: Caller
    ) -> KeyChange:
        """Store the settings of a concurrency key, or delete them. Raises Refusal."""
        change, grants = await self._queue_manager.set_key(ref, key, settings, changed_by=changed_by)
        reached(CrashPoint.KEY_PUT)
        self._dispatcher.dispatch_in_background(grants)
        return change

    async def put_resource(self, definition: ResourceDefinition, changed_by: Caller) -> None:
        """Store the definition of a resource. Raises Refusal."""
        grants = await self._queue_manager.put_resource(definition, changed_by=changed_by)
        reached(CrashPoint.RESOURCE_PUT)
        self._dispatcher.dispatch_in_background(grants)

    async def put_pool(self, definition: PoolDefinition, changed_by: Caller) -> None:
        """Store the settings of a pool. Raises Refusal."""
        grants = await self._queue_manager.put_pool(definition, changed_by=changed_by)
        reached(CrashPoint.POOL_PUT)
        self._dispatcher.dispatch_in_background(grants)

    async def delete_resource(self, name: str, changed_by: Caller) -> ResourceDeletion | None:
        """Delete a resource unless something uses it; None: there is no such resource."""
        return await self._protocol.delete_resource(name, changed_by)

    async def delete_action(self, ref: str, cancel_max: int, changed_by: Caller) -> Deletion | None:
        """Delete an action with at most `cancel_max` waiting executions; None: there is no such action."""
        deletion = await self._protocol.delete_action(
            ref, cancel_max=cancel_max, reason=_DELETED, changed_by=changed_by
        )
        if deletion is not None:
            ended = [move for move in deletion.ended if move.status is Status.CANCELLED]
            self._dispatcher.announce_moves(ended)
            error = Error(type="Cancelled", message=_DELETED)
            self._publish([completion_of(move, error) for move in ended])
        return deletion

    async def cancel(
        self, execution_ids: Sequence[ExecutionId], reason: str | None, changed_by: Caller
    ) -> list[Move]:
        """End what has not started, and cancel what runs; unknown executions are left out.

        Raises Unavailable where another database session holds one of them; the others are cancelled.
        """
        cancelled = await self._canceller.cancel(
            [CancelRequested(execution_id=execution_id, reason=reason) for execution_id in execution_ids],
            changed_by=changed_by,
        )
        reached(CrashPoint.CANCELLATION_DECIDED)
        self._dispatcher.announce_moves(cancelled.moves)
        self._publish(cancelled.messages)
        if cancelled.blocked:
            ids = [execution_ids[index] for index in sorted(cancelled.blocked)]
            raise Unavailable(f"execution_id: another database session holds {ids[:20]}, or their queues")
        return cancelled.found

    async def retry(
        self,
        requests: Sequence[tuple[ExecutionId, str | None]],
        traceparent: str | None,
        changed_by: Caller,
    ) -> list[Retried]:
        """Request ended executions again, each under a key or None; one result each, in that order."""
        results: list[Retried] = []
        # In batches: each copies documents and holds the locks of its queues.
        for start in range(0, len(requests), _RETRY_BATCH_MAX):
            retried, grants = await self._queue_manager.retry(
                requests[start : start + _RETRY_BATCH_MAX], traceparent=traceparent, changed_by=changed_by
            )
            self._dispatcher.announce_admitted(
                (one.action_ref, one.verdict)
                for one in retried
                if one.action_ref is not None
                and isinstance(one.verdict, Accepted)
                and not one.verdict.duplicate
            )
            self._dispatcher.dispatch_in_background(grants)
            results += retried
        return results

    async def drain_worker(self, worker_id: str, changed_by: Caller) -> bool:
        """Request that a worker drains; False: there is no such live worker."""
        return await self._protocol.drain_worker(worker_id, changed_by)

    async def log_bulk(
        self, verb: str, action_ref: str | None, request_json: str, changed_by: Caller
    ) -> None:
        """Record that all executions that a filter selects are about to be changed."""
        await self._protocol.log_bulk(verb, action_ref, request_json, changed_by)

    def _publish(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            self._dispatcher.in_background(self._dispatcher.publish(messages), count=len(messages))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Submission:
    admission: Admission
    verdict: "asyncio.Future[Verdict]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Submissions:
    """Admits HTTP submissions in batches, in the order of arrival. Safe to share between tasks.

    A submission whose queue another database session holds is blocked for a bounded time, and admitted before
    later ones (P2); other queues overtake it (P9).
    """

    def __init__(
        self,
        admit: Callable[[Sequence[Admission]], Awaitable[Sequence[Verdict]]],
        *,
        items_max: int,
        waiting_bytes_max: int | None = None,
    ) -> None:
        self._admit = admit
        # None: try the blocked submissions again.
        self._batches: Batcher[_Submission | None, None] = Batcher(
            self._handle,
            items_max=items_max,
            size_bytes=lambda submission: 0 if submission is None else submission.admission.size_bytes,
            waiting_bytes_max=waiting_bytes_max,
        )
        self._blocked: list[_Submission] = []
        self._admitting = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Admit until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._batches.run(), name="submission-batches")
            while True:
                await asyncio.sleep(_PAUSE_SECONDS)
                if self._blocked:
                    with suppress(Unavailable, asyncpg.PostgresError):
                        await self._batches.submit(None)
        raise AssertionError("ends by cancellation only")

    async def submit_all(self, admissions: Sequence[Admission]) -> list[Verdict]:
        """Admit in the order given. Raises Unavailable."""
        submissions = [_Submission(admission=admission) for admission in admissions]
        verdicts = [each.verdict for each in submissions]
        try:
            await self._batches.submit_all(submissions)
            waiting = [verdict for verdict in verdicts if not verdict.done()]
            if waiting:
                await asyncio.wait(waiting, timeout=BLOCKED_SECONDS)
                # After the running batch: what it still admits must not be reported as blocked.
                async with self._admitting:
                    _cancel_all(verdicts)
            return [
                blocked_verdict(each.admission.action_ref)
                if each.verdict.cancelled()
                else each.verdict.result()
                for each in submissions
            ]
        finally:
            _cancel_all(verdicts)

    async def _handle(self, fresh: Sequence[_Submission | None]) -> list[None]:
        async with self._admitting:
            await self._admit_in_order(fresh)
        return [None] * len(fresh)

    async def _admit_in_order(self, fresh: Sequence[_Submission | None]) -> None:
        batch = [s for s in (*self._blocked, *fresh) if s is not None and not s.verdict.done()]
        try:
            verdicts = await self._admit([submission.admission for submission in batch])
        except BaseException as error:
            # Their outcome is unknown too: their callers decide whether to repeat the request.
            for submission in self._blocked:
                _fail(submission.verdict, error)
            self._blocked = []
            raise
        blocked: list[_Submission] = []
        for submission, verdict in zip(batch, verdicts, strict=True):
            if submission.verdict.done():
                continue
            if is_blocked(verdict) and len(blocked) < _BLOCKED_MAX:
                blocked.append(submission)
            else:
                submission.verdict.set_result(verdict)
        self._blocked = blocked


def _cancel_all(verdicts: "Sequence[asyncio.Future[Verdict]]") -> None:
    for verdict in verdicts:
        verdict.cancel()


def _fail(verdict: "asyncio.Future[Verdict]", error: BaseException) -> None:
    if verdict.done():
        return
    if isinstance(error, Exception):
        verdict.set_exception(error)
        verdict.exception()  # A caller that waits for another verdict first must not cause a warning.
    else:
        verdict.cancel()
