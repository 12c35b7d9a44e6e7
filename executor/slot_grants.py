"""Admits, grants, settles, cancels and retries, and stores definitions.

In: batches of requests and completions, in arrival order, and definitions. Out: one result each, and the
slots granted, which the caller must dispatch (`executor.dispatcher`). A batch is one statement and one
commit, unless the database refuses it: then it is divided until the bad item is alone, and each part
commits alone. A row that another session holds delays only the requests that need it (P9). A definition is
stored in one statement, and the next ones grant what it allows to start. The SQL functions keep P1 and P2.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

import asyncpg

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.errors import Code, Refusal, Unavailable
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import instrumentation
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition
from turnstile.executor.metrics import QUEUES_BLOCKED
from turnstile.executor.parameter_schemas import ParameterSchemas
from turnstile.executor.protocol import ExecutorProtocol, LockWait, QueueLocks
from turnstile.executor.results import (
    Admission,
    Grants,
    KeyChange,
    Move,
    Rejected,
    Retried,
    Settled,
    Verdict,
    blocked_verdict,
    is_blocked,
)

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_SECONDS: Final = 0.25
"""Many times what a batch holds a lock, and short for a submitter."""

_REFUSED: Final = (*REFUSED_BY_DATABASE, asyncpg.LockNotAvailableError)
"""A batch is divided for these; a single item is refused, or blocked by another session."""
_SUSPECTS_MAX: Final = 1000
_SUSPECT_FIRST_SECONDS: Final = 1.0
_SUSPECT_MAX_SECONDS: Final = 8.0
_ADVANCE_ROWS_MAX: Final = 1000
_ADVANCE_STEPS_MAX: Final = 10
"""What a change of gates does at once; the watchdog does the rest."""
_REFUSED_DEFINITION: Final = "definition_refused"
"""The constraint that `turnstile.refuse_definition` names: the message is written for users."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueManager:
    """Runs the executor's statements that lock queues. Safe to share between tasks.

    A statement waits `lock_timeout_seconds` for a row that another session holds (None: without limit). Then
    it runs again for all that can be locked; the others, and all behind them in their queues, are returned as
    blocked.
    """

    def __init__(
        self,
        database: Database,
        *,
        lock_timeout_seconds: float | None = LOCK_TIMEOUT_SECONDS,
        schemas: ParameterSchemas | None = None,
    ) -> None:
        """`schemas` check the parameters of requests; None: the worker alone checks them."""
        self.protocol = ExecutorProtocol(database, on_granted=instrumentation.granted)
        self._schemas = schemas
        self._wait_ms = None if lock_timeout_seconds is None else max(1, round(lock_timeout_seconds * 1000))
        self._blocked_queues = BlockedQueues()
        self._not_advanced = Episodes(logger, "gates_not_advanced")

    async def admit(
        self, admissions: Sequence[Admission], tickets: Mapping[UUID | None, int] | None = None
    ) -> tuple[list[Verdict], Grants]:
        """Queue requests in the order given; one verdict each, in that order.

        With `tickets` they are submissions of database sessions, by request id: what is accepted is deleted
        there.

        Parameters that do not fit their schema are refused here, without a statement. A batch that the
        database refuses is divided until the bad request is alone. Where the database fails in between, only
        the first requests have a verdict: those are committed, and the grants are theirs. Raises Unavailable:
        nothing or all of it was admitted, and admitting it again is harmless where it carries a key.
        """
        refused = {} if self._schemas is None else await self._schemas.refusals(admissions)
        if not refused:
            return await self._admit(admissions, tickets)
        fitting = [each for index, each in enumerate(admissions) if index not in refused]
        decided, grants = await self._admit(fitting, tickets) if fitting else ([], Grants(granted=[]))
        return _in_order(len(admissions), refused, decided), grants

    async def _admit(
        self, admissions: Sequence[Admission], tickets: Mapping[UUID | None, int] | None
    ) -> tuple[list[Verdict], Grants]:
        traced, spans = instrumentation.begin_admissions(admissions)
        blocked_refs: set[str] = set()

        async def admit(part: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
            # Requests behind a blocked one must not overtake it, even if the row is free by now (P2).
            free = [a for a in part if a.action_ref not in blocked_refs]
            verdicts, grants = (
                await self._bounded(
                    lambda wait: (
                        self.protocol.admit(free, wait)
                        if tickets is None
                        else self.protocol.admit_submissions(free, wait, tickets)
                    )
                )
                if free
                else ([], Grants(granted=[]))
            )
            in_order = iter(verdicts)
            all_verdicts = [
                blocked_verdict(a.action_ref) if a.action_ref in blocked_refs else next(in_order)
                for a in part
            ]
            blocked_refs.update(
                a.action_ref for a, v in zip(part, all_verdicts, strict=True) if is_blocked(v)
            )
            return all_verdicts, grants

        def refuse(admission: Admission, error: Exception) -> tuple[list[Verdict], Grants]:
            if isinstance(error, asyncpg.LockNotAvailableError):
                blocked_refs.add(admission.action_ref)
                return [blocked_verdict(admission.action_ref)], Grants(granted=[])
            refusal = Rejected(code=Code.INVALID_MESSAGE, message=f"the database refuses it: {error}")
            return [refusal], Grants(granted=[])

        parts = await _divided(traced, admit, refuse)
        verdicts = [verdict for decided, _ in parts for verdict in decided]
        instrumentation.admitted(traced[: len(verdicts)], verdicts, spans)
        return verdicts, sum((grants for _, grants in parts), start=Grants(granted=[]))

    async def settle(self, completions: Sequence[tuple[ExecutionId, Attempt, Status | None]]) -> Settled:
        """Free the slots of these attempts, once each even if repeated, and grant them again.

        Each has the terminal status of its message; None if the attempt did not end the execution. A batch
        that the database refuses is divided, as by `admit`; `decided` is how many were settled then.
        """

        async def settle(part: Sequence[tuple[ExecutionId, Attempt, Status | None]]) -> Settled:
            return await self._bounded(lambda wait: self.protocol.settle(part, wait))

        return sum(await _divided(completions, settle, _unsettled), start=Settled())

    async def grant(self, queue_ids: Sequence[QueueId]) -> Grants:
        """Grant the free slots of these queues to their first waiting executions."""
        try:
            return await self._bounded(lambda wait: self.protocol.grant_slots(queue_ids, wait))
        except asyncpg.LockNotAvailableError:
            if len(queue_ids) == 1:
                return Grants(granted=[])
            middle = len(queue_ids) // 2
            return (await self.grant(queue_ids[:middle])) + (await self.grant(queue_ids[middle:]))

    async def cancel(
        self, requests: Sequence[tuple[ExecutionId, str | None]], *, changed_by: Caller | None = None
    ) -> tuple[list[Move], frozenset[ExecutionId]]:
        """End what has not started; return what runs as `running`: its worker needs a cancel message.

        Executions that do not exist are left out. The second value is those that another session holds:
        nothing was done for them. With `changed_by` the cancels are recorded in the audit log.
        """
        try:
            return await self._bounded(
                lambda wait: self.protocol.cancel(requests, wait, changed_by=changed_by)
            )
        except asyncpg.LockNotAvailableError:
            if len(requests) == 1:
                return [], frozenset([requests[0][0]])
            middle = len(requests) // 2
            first = await self.cancel(requests[:middle], changed_by=changed_by)
            second = await self.cancel(requests[middle:], changed_by=changed_by)
            return first[0] + second[0], first[1] | second[1]

    async def retry(
        self,
        requests: Sequence[tuple[ExecutionId, str | None]],
        *,
        traceparent: str | None = None,
        changed_by: Caller | None = None,
    ) -> tuple[list[Retried], Grants]:
        """Request ended executions again; each may carry an idempotency key.

        Raises Unavailable where another session holds a row that is needed.
        """
        try:
            return await self._bounded(
                lambda wait: self.protocol.retry(
                    requests, wait, traceparent=traceparent, changed_by=changed_by
                )
            )
        except asyncpg.LockNotAvailableError as error:
            raise Unavailable(f"database: {error}; another session holds what a retry needs") from error

    async def put_actions(
        self, definitions: Sequence[ActionDefinition], *, changed_by: Caller | None = None
    ) -> Grants:
        """Store definitions, and who changed them; a changed limit or pause acts at once.

        Raises Refusal for a definition that the database does not accept.
        """
        with _refusals():
            grants = await self.protocol.put_actions(definitions, changed_by)
        reached(CrashPoint.ACTIONS_STORED)
        return grants + await self._advance_gates()

    async def set_key(
        self, ref: str, key: str, settings: KeySettings | None, *, changed_by: Caller
    ) -> tuple[KeyChange, Grants]:
        """Store the settings of a concurrency key, or delete them; a changed limit acts at once.

        Raises Refusal if the action has no concurrency keys.
        """
        with _refusals():
            change, grants = await self.protocol.set_key(ref, key, settings, changed_by)
        return change, grants + await self._advance_gates()

    async def put_resource(self, definition: ResourceDefinition, *, changed_by: Caller) -> Grants:
        """Store the definition of a resource; the change acts at once. Raises Refusal."""
        with _refusals():
            behind_ids = await self.protocol.put_resource(definition, changed_by)
        reached(CrashPoint.RESOURCE_STORED)
        return await self._advance_gates(behind_ids)

    async def put_pool(self, definition: PoolDefinition, *, changed_by: Caller) -> Grants:
        """Store the settings of a pool; the change acts at once. Raises Refusal."""
        with _refusals():
            waiting_ids = await self.protocol.put_pool(definition, changed_by)
        reached(CrashPoint.POOL_STORED)
        return await self._advance_gates(waiting_ids)

    async def _advance_gates(self, behind_ids: Sequence[QueueId] = ()) -> Grants:
        """Apply a committed change of gates to what waits at them or, in these queues, behind them.

        The watchdog does what is left, also after a failure.
        """
        grants = Grants(granted=[])
        try:
            # First: an older execution may wait in its queue behind a younger one at the gate.
            if behind_ids:
                grants += await self.grant(behind_ids)
            for _ in range(_ADVANCE_STEPS_MAX):
                more, remaining = await self.protocol.advance_gates(_ADVANCE_ROWS_MAX)
                grants += more
                if not remaining:
                    break
        except (Unavailable, asyncpg.PostgresError) as error:
            self._not_advanced.failed("gates", reason=str(error))
        else:
            self._not_advanced.works("gates")
        return grants

    async def _bounded(self, statement: Callable[[LockWait], Awaitable[tuple[Result, QueueLocks]]]) -> Result:
        """Run a statement with bounded waits for locks.

        Raises LockNotAvailableError where another session holds something other than a queue or an execution.
        """
        suspects = self._blocked_queues.suspects()
        try:
            result, locks = await statement(LockWait(self._wait_ms, suspects))
            if suspects is not None:
                self._blocked_queues.got_all()
        except asyncpg.LockNotAvailableError:
            self._blocked_queues.timed_out()
            result, locks = await statement(LockWait(self._wait_ms, None))
        self._blocked_queues.note(locks.blocked, locks.free)
        return result


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except asyncpg.CheckViolationError as error:
        if error.constraint_name != _REFUSED_DEFINITION:
            raise
        raise Refusal(Code.INVALID_MESSAGE, str(error)) from None
    except asyncpg.ObjectInUseError as error:
        raise Refusal(Code.IN_USE, str(error)) from None


def _in_order(count: int, refused: Mapping[int, Rejected], decided: Sequence[Verdict]) -> list[Verdict]:
    """Join refusals, by index, with the verdicts on the others, up to the first that is not decided."""
    verdicts: list[Verdict] = []
    others = iter(decided)
    for index in range(count):
        verdict = refused.get(index) or next(others, None)
        if verdict is None:
            break
        verdicts.append(verdict)
    return verdicts


async def _divided(
    batch: Sequence[Item],
    decide: Callable[[Sequence[Item]], Awaitable[Result]],
    refuse: Callable[[Item, Exception], Result],
) -> list[Result]:
    """Decide a batch, in halves where the database refuses it; return what is decided, in order.

    Stops where the database fails: results that are committed must not wait for its recovery.
    """
    decided: list[Result] = []
    undecided = [batch] if batch else []
    while undecided:
        part = undecided.pop()
        try:
            decided.append(await decide(part))
        except _REFUSED as error:
            if len(part) == 1:
                decided.append(refuse(part[0], error))
            else:
                middle = len(part) // 2
                undecided += [part[middle:], part[:middle]]
        except (Unavailable, asyncpg.PostgresError):
            if not decided:
                raise
            break
    return decided


def _unsettled(completion: tuple[ExecutionId, Attempt, Status | None], error: Exception) -> Settled:
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Settled(decided=1, blocked=frozenset([completion[0]]))
    return Settled(decided=1, refused={completion[:2]: f"the database refuses it: {error}"})


@dataclass(slots=True, kw_only=True)
class _Suspicion:
    until: float
    seconds: float


class BlockedQueues:
    """Remembers queues that other sessions hold, so that statements try them without waiting (P9).

    A row that a session never unlocks costs a wait every few seconds, not one in each statement. A queue
    that a statement could lock is not suspect any more.
    """

    def __init__(self) -> None:
        self._suspicions: dict[QueueId, _Suspicion] = {}
        self._caution = _Suspicion(until=0.0, seconds=0.0)
        self._blocked = Episodes(logger, "queues_blocked")

    def suspects(self) -> list[QueueId] | None:
        """Return the queues not to wait for; None: wait for no row, because a wait just timed out."""
        now = time.monotonic()
        if self._caution.until > now:
            return None
        return [queue_id for queue_id, suspicion in self._suspicions.items() if suspicion.until > now]

    def timed_out(self) -> None:
        """Note that a statement waited too long for a queue, or for a row that has no queue yet."""
        caution = self._caution
        caution.seconds = min(max(caution.seconds * 2, _SUSPECT_FIRST_SECONDS), _SUSPECT_MAX_SECONDS)
        caution.until = time.monotonic() + caution.seconds

    def got_all(self) -> None:
        """Note that a statement that may wait got its locks."""
        self._caution.seconds = 0.0

    def note(self, blocked: Sequence[QueueId], free: Iterable[QueueId]) -> None:
        """Remember what a statement found locked by another session, and what it could lock again."""
        for queue_id in free:
            self._suspicions.pop(queue_id, None)
        now = time.monotonic()
        found = [queue_id for queue_id in blocked if self._is_waited_for(queue_id, now)]
        for queue_id in found:
            known = self._suspicions.pop(queue_id, None)
            seconds = (
                _SUSPECT_FIRST_SECONDS if known is None else min(known.seconds * 2, _SUSPECT_MAX_SECONDS)
            )
            self._suspicions[queue_id] = _Suspicion(until=now + seconds, seconds=seconds)
        while len(self._suspicions) > _SUSPECTS_MAX:
            del self._suspicions[next(iter(self._suspicions))]
        if found:
            QUEUES_BLOCKED.add(count=len(found))
            self._blocked.failed(
                "queues",
                queue_ids=found[:20],
                queues=len(found),
                reason="another database session holds rows of them; see docs/runbook.md",
            )
        elif not self._suspicions:
            self._blocked.works("queues")

    def _is_waited_for(self, queue_id: QueueId, now: float) -> bool:
        suspicion = self._suspicions.get(queue_id)
        return suspicion is None or suspicion.until <= now
