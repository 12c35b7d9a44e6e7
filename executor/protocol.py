"""The calls of `turnstile.*` SQL functions that the executor makes, one typed method each.

In: values of `executor.results`. Out: the same, decoded. The SQL functions decide and commit; each method is
one statement and one commit, and raises Unavailable where the database does not answer. Elsewhere are only
the webhooks (`executor.webhooks.store`), calls on connections of their own (`executor.submission_listener`,
`executor.backup.restored`, `executor.permissions.database`), and functions that only read, in the statements
of `executor.queries` and `executor.sql`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
from pydantic_core import from_json

from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.requests import json_text
from turnstile.common.statements import LOG_OPERATION
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import (
    KeySettings,
    PoolDefinition,
    ResourceDefinition,
    key_columns,
    pool_columns,
    resource_columns,
)
from turnstile.executor.results import (
    Admission,
    Deletion,
    Grant,
    Grants,
    KeyChange,
    Move,
    ResourceDeletion,
    Retried,
    Settled,
    Verdict,
    read_deletion,
    read_grant,
    read_grants,
    read_move,
    read_moves,
    read_retried,
    read_settled,
    read_verdicts,
)

SWEEPS_CHANNEL: Final = "turnstile_sweeps"
PRUNING_REASONS: Final = ("age", "count", "bytes")


class LockWait(NamedTuple):
    """How long a statement waits for locks."""

    timeout_ms: int | None
    """None: without limit."""
    suspect_queue_ids: list[QueueId] | None
    """Queues that are only tried, not waited for; None: no row is waited for."""


class QueueLocks(NamedTuple):
    """Queues that a statement found locked by another session, and queues that it could lock."""

    blocked: Sequence[QueueId]
    free: Sequence[QueueId]


class RefreshedPools(NamedTuple):
    """What a count of the pools found."""

    workers: str
    """Names the live workers, for the next refresh."""
    totals: Mapping[int, tuple[int, int, bool]]
    """By pool, the worker slots that it took back so far, the lead, and whether they are scarce."""
    more_queue_ids: list[QueueId]
    """Queues that may go on."""
    repaired: int
    """Pools whose count of held worker slots was wrong."""


class SubmissionPage(NamedTuple):
    """Committed submissions in the order of their tickets, and what is known about those before and after."""

    submissions: list["StoredSubmission"]
    newest_ticket: int
    """The newest ticket that was drawn before the page was read."""
    oldest_ticket: int | None
    """Of all submissions that were read, also of those that are too young for the page."""
    entering: frozenset[str] | None
    """Transactions that had drawn tickets up to the newest and had not ended; None if not requested."""


class StoredSubmission(NamedTuple):
    """A committed submission of a database session."""

    ticket: int
    request_id: UUID
    request_json: str | None
    """The body of `execution.requested`; None if it is larger than was requested."""
    traceparent: str | None


class CheckedAction(NamedTuple):
    """An action whose requests are checked against a schema."""

    ref: str
    given: str | None
    """The key of the schema in its definition."""
    derived: Sequence[str]
    """Otherwise: the keys of those that workers derived from their code; parameters have to fit one."""


class ReadSchemas(NamedTuple):
    """The schemas that requests are checked against."""

    version: str
    actions: Sequence[CheckedAction]
    contents: Mapping[str, Any]
    """The schemas by key, without those that were known."""


class EarlyCancel(NamedTuple):
    """A cancel request to be stored until its execution is known."""

    execution_id: int | None
    idempotency_key: str | None
    reason: str | None
    message_key: UUID | None
    """Identifies copies of one message."""
    messages: bytes
    """What is published when the execution stays unknown."""
    keep_seconds: float


class ExecutorProtocol:
    """The SQL functions of the executor. Safe to share between tasks."""

    def __init__(
        self, database: Database, *, on_granted: Callable[[Sequence[Grant]], None] | None = None
    ) -> None:
        """`on_granted` gets what a statement granted, after its commit; None: the caller grants nothing."""
        self._database = database
        self._on_granted = on_granted

    # Statements that wait for locks.

    async def admit(
        self, admissions: Sequence[Admission], wait: LockWait
    ) -> tuple[tuple[list[Verdict], Grants], QueueLocks]:
        """Queue requests in this order, and grant free slots; one verdict each."""
        row = await self._row(
            "SELECT * FROM turnstile.admit("
            "$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, in_wait_ms => $1, in_suspect_ids => $2, "
            "in_priorities => $15, in_may_be_urgent => $16)",
            *wait,
            *_request_columns(admissions),
            [a.may_be_urgent for a in admissions],
        )
        return (read_verdicts(row["admitted"], admissions), self._grants(row)), _locks(row)

    async def admit_submissions(
        self, admissions: Sequence[Admission], wait: LockWait, tickets: Mapping[UUID | None, int]
    ) -> tuple[tuple[list[Verdict], Grants], QueueLocks]:
        """Admit submissions of database sessions, whose delivery keys are their request ids.

        Raises Unavailable if another executor has taken one of them.
        """
        row = await self._row(
            "SELECT * FROM turnstile.admit_submissions("
            "$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $1, $2)",
            *wait,
            [tickets[a.delivery_key] for a in admissions],
            *_request_columns(admissions),
        )
        if row["admitted"] is None:
            raise Unavailable("another executor has taken these submissions")
        return (read_verdicts(row["admitted"], admissions), self._grants(row)), _locks(row)

    async def settle(
        self, completions: Sequence[tuple[ExecutionId, Attempt, Status | None]], wait: LockWait
    ) -> tuple[Settled, QueueLocks]:
        """Free the slots of these attempts and grant them to the next executions in their queues."""
        row = await self._row(
            "SELECT * FROM turnstile.settle($3, $4, $1, $2, $5)",
            *wait,
            [c[0] for c in completions],
            [c[1] for c in completions],
            [c[2] for c in completions],
        )
        return read_settled(row, len(completions), self._grants(row)), _locks(row)

    async def grant_slots(self, queue_ids: Sequence[QueueId], wait: LockWait) -> tuple[Grants, QueueLocks]:
        """Grant the free slots of these queues to their first waiting executions."""
        row = await self._row(
            "SELECT * FROM turnstile.grant_slots($3, $1, $2)",
            *wait,
            list(queue_ids),
        )
        return self._grants(row), _locks(row)

    async def cancel(
        self,
        requests: Sequence[tuple[ExecutionId, str | None]],
        wait: LockWait,
        *,
        changed_by: Caller | None,
    ) -> tuple[tuple[list[Move], frozenset[ExecutionId]], QueueLocks]:
        """Cancel executions, each with a reason; return those found, and those that were blocked."""
        row = await self._row(
            "SELECT * FROM turnstile.cancel_unless_held($3, $4, $1, $2, $5)",
            *wait,
            *_columns(requests),
            _json(changed_by),
        )
        moves = [read_move(item) for item in row["moves"] if item["status"] is not None]
        return (moves, frozenset(row["blocked_ids"])), _locks(row)

    async def retry(
        self,
        requests: Sequence[tuple[ExecutionId, str | None]],
        wait: LockWait,
        *,
        traceparent: str | None,
        changed_by: Caller | None,
    ) -> tuple[tuple[list[Retried], Grants], QueueLocks]:
        """Request ended executions again, each under an idempotency key or None."""
        row = await self._row(
            "SELECT * FROM turnstile.retry($3, $4, $5, $1, $2, $6)",
            *wait,
            *_columns(requests),
            traceparent,
            _json(changed_by),
        )
        pairs = zip(row["retried"], requests, strict=True)
        return ([read_retried(item, key) for item, (_, key) in pairs], self._grants(row)), _locks(row)

    # Submissions of database sessions.

    async def next_submissions(
        self,
        from_ticket: int,
        rows_max: int,
        bytes_max: int,
        *,
        body_bytes_max: int,
        passed_refs: Sequence[str],
        min_age_seconds: float,
        with_entering: bool,
    ) -> SubmissionPage:
        """Return the next submissions from this ticket on, without those of the actions `passed_refs`."""
        row = await self._row(
            "SELECT * FROM turnstile.next_submissions($1, $2, $3, $4, $5, $6, $7)",
            from_ticket,
            rows_max,
            bytes_max,
            list(passed_refs),
            min_age_seconds,
            with_entering,
            body_bytes_max,
        )
        columns = (row["tickets"] or [], row["request_ids"] or [], row["requests"], row["traceparents"])
        found = zip(*columns, strict=True) if row["tickets"] else ()
        return SubmissionPage(
            submissions=[StoredSubmission(*each) for each in found],
            newest_ticket=row["newest_ticket"],
            oldest_ticket=row["oldest_ticket"],
            entering=None if row["entering"] is None else frozenset(row["entering"]),
        )

    async def reject_submissions(self, rejected: Sequence[tuple[int, str, str]]) -> None:
        """Delete these submissions by ticket, each with its code and message."""
        await self._value(
            "SELECT turnstile.reject_submissions($1, $2, $3)", *map(list, zip(*rejected, strict=True))
        )

    async def prune_submission_outcomes(self, keep_seconds: float, rows_max: int) -> int:
        """Delete what became of old submissions; return how many."""
        return int(
            await self._value("SELECT turnstile.prune_submission_outcomes($1, $2)", keep_seconds, rows_max)
        )

    # Executions, actions, workers.

    async def ids_by_key(self, idempotency_keys: Sequence[str]) -> dict[str, ExecutionId]:
        """Return the executions with these idempotency keys."""
        rows = await self._database.fetch(
            "SELECT idempotency_key, id FROM execution WHERE idempotency_key = ANY ($1)",
            list(idempotency_keys),
        )
        return {row["idempotency_key"]: row["id"] for row in rows}

    async def known_keys(
        self, idempotency_keys: Sequence[str], delivery_keys: Sequence[UUID]
    ) -> tuple[frozenset[str], frozenset[UUID]]:
        """Return which of these keys belong to executions."""
        row = await self._row(
            "SELECT ARRAY(SELECT idempotency_key FROM execution WHERE idempotency_key = ANY ($1)) requests,"
            " ARRAY(SELECT delivery_key FROM execution WHERE delivery_key = ANY ($2)) deliveries",
            list(idempotency_keys),
            list(delivery_keys),
        )
        return frozenset(row["requests"]), frozenset(row["deliveries"])

    async def read_schemas(self, version: str | None, known_keys: Collection[str]) -> ReadSchemas | None:
        """Return the schemas that requests are checked against; None: they are those of this version."""
        row = await self._row("SELECT * FROM turnstile.read_schemas($1, $2)", version, list(known_keys))
        if row["judges"] is None:
            return None
        return ReadSchemas(
            row["version"],
            [
                CheckedAction(j["ref"], j["given"], tuple(j["derived"] or ()))
                for j in from_json(row["judges"])
            ],
            from_json(row["contents"]),
        )

    async def put_actions(self, definitions: Sequence[ActionDefinition], changed_by: Caller | None) -> Grants:
        """Store definitions, and who changed them."""
        columns = json_text([action_columns(definition) for definition in definitions])
        return self._grants(
            await self._row(
                "SELECT * FROM turnstile.put_actions($1, in_caller => $2)", columns, _json(changed_by)
            )
        )

    async def set_key(
        self, ref: str, key: str, settings: KeySettings | None, changed_by: Caller
    ) -> tuple[KeyChange, Grants]:
        """Store the settings of a concurrency key, or delete them."""
        row = await self._row(
            "SELECT * FROM turnstile.set_key($1, $2, $3, in_caller => $4)",
            ref,
            key,
            None if settings is None else json_text(key_columns(settings)),
            changed_by.json(),
        )
        return KeyChange(row["action_found"], bool(row["key_found"])), self._grants(row)

    async def put_resource(self, definition: ResourceDefinition, changed_by: Caller) -> list[QueueId]:
        """Store the definition of a resource; return queues that may go on if it opens."""
        columns = json_text(resource_columns(definition))
        return await self._column(
            "SELECT * FROM turnstile.put_resource($1, in_caller => $2)", columns, changed_by.json()
        )

    async def put_pool(self, definition: PoolDefinition, changed_by: Caller) -> list[QueueId]:
        """Store the settings of a pool; return queues that may start more."""
        columns = json_text(pool_columns(definition))
        return await self._column(
            "SELECT * FROM turnstile.put_pool($1, in_caller => $2)", columns, changed_by.json()
        )

    async def delete_resource(self, name: str, changed_by: Caller) -> ResourceDeletion | None:
        """Delete a resource unless something uses it; None: there is no such resource."""
        row = await self._row(
            "SELECT * FROM turnstile.delete_resource($1, in_caller => $2)", name, changed_by.json()
        )
        if row["users"] is None:
            return None
        return ResourceDeletion(
            deleted=row["deleted"],
            users=row["users"],
            used_by=row["used_by"] or [],
            held=row["held"],
            waiting=row["waiting"],
        )

    async def delete_action(
        self, ref: str, *, cancel_max: int, reason: str, changed_by: Caller | None
    ) -> Deletion | None:
        """Delete an action if nothing of it runs and at most `cancel_max` wait, which end with it.

        None: there is no such action.
        """
        return read_deletion(
            await self._row(
                "SELECT * FROM turnstile.delete_action($1, $2, $3, in_caller => $4)",
                ref,
                cancel_max,
                reason,
                _json(changed_by),
            )
        )

    async def drain_worker(self, worker_id: str, changed_by: Caller) -> bool:
        """Request that a worker drains; False: there is no such live worker."""
        return bool(await self._value("SELECT turnstile.drain_worker($1, $2)", worker_id, changed_by.json()))

    async def log_bulk(
        self, verb: str, action_ref: str | None, request_json: str, changed_by: Caller
    ) -> None:
        """Record that all executions that a filter selects are about to be changed."""
        await self._value(
            "SELECT turnstile.log_bulk($1, $2, $3, $4)", changed_by.json(), verb, action_ref, request_json
        )

    async def log_operation(
        self, verb: str, kind: str, subject: str, before_json: str, after_json: str, *, changed_by: Caller
    ) -> None:
        """Record a change that no other function makes."""
        await self._value(LOG_OPERATION, changed_by.json(), verb, kind, subject, before_json, after_json)

    # Cancels of executions that are not known yet.

    async def store_early_cancels(self, cancels: Sequence[EarlyCancel], rows_max: int) -> int:
        """Store as many of these, from the first on, as fit into `rows_max` rows; return how many."""
        return int(
            await self._value(
                "SELECT turnstile.store_early_cancels($1, $2, $3, $4, $5, $6, $7)",
                *map(list, zip(*cancels, strict=True)),
                rows_max,
            )
        )

    async def known_early_cancels(self, rows_max: int) -> Sequence[asyncpg.Record]:
        """Return stored cancels whose execution is known now: id, execution_id, reason."""
        return await self._database.fetch("SELECT * FROM turnstile.known_early_cancels($1)", rows_max)

    async def overdue_early_cancels(self, lease_seconds: float, rows_max: int) -> Sequence[asyncpg.Record]:
        """Lease stored cancels whose time is over: id, messages."""
        return await self._database.fetch(
            "SELECT * FROM turnstile.overdue_early_cancels($1, $2)", lease_seconds, rows_max
        )

    async def delete_early_cancels(self, ids: Sequence[int]) -> None:
        """Delete stored cancels."""
        await self._database.fetch("SELECT turnstile.delete_early_cancels($1)", list(ids))

    async def announce_round(self, name: str) -> None:
        """Report to all executors that the one with this name has completed a round of sweeps."""
        await self._value("SELECT pg_notify($1, $2)", SWEEPS_CHANNEL, name)

    # Sweeps over queues.

    async def grantable_queues(self, after_id: QueueId, rows_max: int) -> tuple[list[QueueId], QueueId]:
        """Return queues with a free slot and a waiting execution, and after which id to continue."""
        row = await self._row("SELECT * FROM turnstile.grantable_queues($1, $2)", after_id, rows_max)
        return row["queue_ids"] or [], row["next_id"]

    async def advance_gates(self, rows_max: int) -> tuple[Grants, bool]:
        """Return executions from closed gates to their queues, or let pass what can; True: call it again."""
        row = await self._row("SELECT * FROM turnstile.advance_gates($1)", rows_max)
        return self._grants(row), row["remaining"]

    async def pass_rates(self) -> tuple[Grants, float | None, bool]:
        """Grant what waits for a rate and is due.

        Also returns in how many seconds a used-up rate has its next start, and whether there are rates.
        """
        row = await self._row("SELECT * FROM turnstile.pass_rates()")
        return self._grants(row), row["next_seconds"], row["has_rates"]

    async def refresh_pools(
        self, workers: str | None, leads: Mapping[int, int], *, recounts: bool = False
    ) -> RefreshedPools:
        """Set these leads, and count the capacity if the workers are others than `workers`, or always."""
        row = await self._row(
            "SELECT * FROM turnstile.refresh_pools($1, $2, $3, $4)",
            workers,
            list(leads),
            list(leads.values()),
            recounts,
        )
        totals = {int(pool_id): pace for pool_id, pace in from_json(row["totals"] or "{}").items()}
        return RefreshedPools(row["workers"], totals, row["more_queue_ids"] or [], row["repaired"])

    async def repair_gates(self) -> Sequence[asyncpg.Record]:
        """Recount all gates and correct their counters; return the old and the new counts of wrong ones."""
        return await self._database.fetch("SELECT * FROM turnstile.repair_gates()")

    async def tidy_gates(self, rows_max: int) -> None:
        """Delete turns and starts that no gate needs any more, and gates that no action passes."""
        await self._value("SELECT turnstile.tidy_gates($1)", rows_max)

    async def rollouts_due(self, rows_max: int) -> list[int]:
        """Return actions with queues that do not have the action's current limit or pause."""
        return await self._column("SELECT turnstile.rollouts_due($1)", rows_max)

    async def roll_out(self, action_id: int, rows_max: int) -> tuple[int, int, Grants]:
        """Apply limit and pause to the next queues of an action: number read, number changed, grants."""
        row = await self._row("SELECT * FROM turnstile.roll_out($1, $2)", action_id, rows_max)
        return row["looked_at"], row["changed"], self._grants(row)

    async def wake_due(self, rows_max: int) -> tuple[list[Move], Grants]:
        """Queue delayed executions that are due."""
        row = await self._row("SELECT * FROM turnstile.wake_due($1)", rows_max)
        return read_moves(row["woken"]), self._grants(row)

    async def expire_due(self, rows_max: int) -> list[Move]:
        """End executions that did not start within their ttl."""
        return read_moves(await self._database.fetch("SELECT * FROM turnstile.expire_due($1)", rows_max))

    async def drifted_queues(self, after_id: QueueId, rows_max: int) -> tuple[list[QueueId], QueueId]:
        """Return queues whose counters differ from their rows, and after which id to continue."""
        row = await self._row("SELECT * FROM turnstile.drifted_queues($1, $2)", after_id, rows_max)
        return row["queue_ids"] or [], row["next_id"]

    async def repair_queues(self, queue_ids: Sequence[QueueId]) -> tuple[list[dict[str, Any]], Grants]:
        """Recount these queues under their locks; return what was wrong, and what that granted.

        What was wrong has the fields of `turnstile.repaired`: queue_id, depth_before, depth, held_before,
        held.
        """
        row = await self._row("SELECT * FROM turnstile.repair_queues($1)", queue_ids)
        return [dict(item.items()) for item in row["repaired"] or ()], self._grants(row)

    async def move_slot_window(self) -> int:
        """Raise the bound of the tickets that sweeps read; return how many old rows moved with it."""
        return int(await self._value("SELECT turnstile.move_slot_window()"))

    async def move_due_window(self) -> int:
        """Raise the bound from which sweeps read delays and deadlines; return how many moved with it."""
        return int(await self._value("SELECT turnstile.move_due_window()"))

    # Sweeps over offers and completions.

    async def due_pools(self, timeout_seconds: float) -> Sequence[asyncpg.Record]:
        """Return pools with unclaimed offers: pool, offered, looked_at."""
        return await self._database.fetch("SELECT * FROM turnstile.due_pools($1)", timeout_seconds)

    async def missing_offers(
        self,
        timeout_seconds: float,
        due: Sequence[asyncpg.Record],
        ready: Sequence[int],
        rows_max: int,
        *,
        held: Sequence[int],
    ) -> list[Grant]:
        """Return offers to repeat in the pools of `due`, whose queues hold so many ready messages.

        `held` is the largest number of offers that these messages may carry.
        """
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6, $7)",
            timeout_seconds,
            min(row["looked_at"] for row in due),
            [row["pool"] for row in due],
            [row["offered"] for row in due],
            ready,
            rows_max,
            held,
        )
        return [read_grant(row) for row in rows]

    async def due_completions(self, timeout_seconds: float, rows_max: int) -> list[ExecutionId]:
        """Return ended executions whose completion was published and not settled."""
        return await self._column(
            "SELECT * FROM turnstile.due_completions($1, $2)", timeout_seconds, rows_max
        )

    # Sweeps over claimed slots.

    async def clock(self) -> datetime:
        """Return the database's time."""
        at: datetime = await self._value("SELECT clock_timestamp()")
        return at

    async def clamp_future_instants(self, was_set_back: bool) -> int:
        """Repair times that lie in the future after the database's clock was set back."""
        return int(await self._value("SELECT turnstile.clamp_future_instants($1)", was_set_back))

    async def reclaim(self, rows_max: int, as_of: datetime) -> tuple[list[Move], list[Move], Grants]:
        """Reclaim the work of workers whose lease ended before `as_of`: requeued, ended, granted."""
        row = await self._row("SELECT * FROM turnstile.reclaim($1, $2)", rows_max, as_of)
        return read_moves(row["returned"]), read_moves(row["ended"]), self._grants(row)

    async def due_cancels(self, timeout_seconds: float, rows_max: int) -> list[tuple[int, int, str]]:
        """Return unpublished cancels of reclaimed attempts: execution id, attempt, worker id."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.due_cancels($1, $2)", timeout_seconds, rows_max
        )
        return [(row["execution_id"], row["attempt"], row["worker_id"]) for row in rows]

    async def cancels_published(self, cancels: Sequence[tuple[int, int, str]]) -> None:
        """Store that these cancels were published."""
        ids, attempts = [cancel[0] for cancel in cancels], [cancel[1] for cancel in cancels]
        await self._database.fetch("SELECT turnstile.cancels_published($1, $2)", ids, attempts)

    async def stop_overdue(
        self, timeout_seconds: float, cancels_max: int, rows_max: int
    ) -> tuple[list[Move], list[Move]]:
        """Return overdue attempts that a worker has to cancel, and those that were ended."""
        row = await self._row(
            "SELECT * FROM turnstile.stop_overdue($1, $2, $3)", timeout_seconds, cancels_max, rows_max
        )
        return read_moves(row["asked"]), read_moves(row["ended"])

    # Retention and dead letters.

    async def prune_executions(
        self,
        action_id: int,
        after_id: int,
        *,
        age_seconds: float | None,
        count: int | None,
        late_copy_seconds: float,
        rows_max: int,
    ) -> tuple[int | None, int, int]:
        """Delete ended executions; return how many, and after which action and id to continue.

        None instead of the count: another executor is pruning.
        """
        row = await self._row(
            "SELECT * FROM turnstile.prune($1, $2, $3, $4, $5, $6)",
            action_id,
            after_id,
            age_seconds,
            count,
            late_copy_seconds,
            rows_max,
        )
        return row["pruned"], row["next_action_id"], row["next_id"]

    async def delete_idle_queues(self, after_id: int, idle_seconds: float, rows_max: int) -> tuple[int, int]:
        """Delete the queues of idle concurrency keys; return how many, and after which id to continue."""
        row = await self._row(
            "SELECT * FROM turnstile.delete_idle_queues($1, $2, $3)", after_id, idle_seconds, rows_max
        )
        return row["deleted"], row["next_id"]

    async def prune_workers(self, keep_seconds: float, rows_max: int) -> int:
        """Delete workers that left long ago."""
        return int(await self._value("SELECT turnstile.prune_workers($1, $2)", keep_seconds, rows_max))

    async def prune_pools(self, rows_max: int) -> int:
        """Delete pools that no action names any more."""
        return int(await self._value("SELECT turnstile.prune_pools($1)", rows_max))

    async def prune_audit_log(self, keep_seconds: float, rows_max: int) -> int:
        """Delete old rows of the audit log."""
        return int(await self._value("SELECT turnstile.prune_audit_log($1, $2)", keep_seconds, rows_max))

    async def prune_webhooks(self, keep_seconds: float, rows_max: int) -> int:
        """Delete deliveries that ended long ago."""
        return int(await self._value("SELECT turnstile.clean_webhooks($1, $2)", keep_seconds, rows_max))

    async def give_up_webhooks(self, after_id: int, age_max_seconds: float, rows_max: int) -> tuple[int, int]:
        """Fail deliveries that are pending for too long; return how many, and after which id to continue."""
        row = await self._row(
            "SELECT * FROM turnstile.give_up_webhooks($1, $2, $3)", after_id, age_max_seconds, rows_max
        )
        return row["given_up"], row["next_id"]

    async def prune_dead_letters(
        self, age_seconds: float | None, count_max: int, bytes_max: int, rows_max: int
    ) -> dict[str, int]:
        """Delete dead letters; return how many for which of `PRUNING_REASONS`."""
        row = await self._row(
            "SELECT * FROM turnstile.prune_dead_letters($1, $2, $3, $4)",
            age_seconds,
            count_max,
            bytes_max,
            rows_max,
        )
        # Null: another executor is pruning.
        return {reason: row[f"by_{reason}"] or 0 for reason in PRUNING_REASONS}

    async def store_dead_letters(self, dead_letters_json: str, bodies: Sequence[bytes]) -> list[str]:
        """Store dead letters, each once; return the codes of the new ones."""
        return await self._column("SELECT turnstile.store_dead_letters($1, $2)", dead_letters_json, bodies)

    async def delete_dead_letters(
        self, ids: Sequence[int], verb: str, changed_by: Caller, *, edited: bool = False
    ) -> int:
        """Delete dead letters that were replayed or purged; return how many."""
        return int(
            await self._value(
                "SELECT turnstile.delete_dead_letters($1, $2, $3, $4)", ids, verb, edited, changed_by.json()
            )
        )

    # API tokens.

    async def create_token(
        self,
        name: str,
        role: str,
        scope: Sequence[str] | None,
        digest: bytes,
        *,
        seconds: float | None,
        changed_by: Caller,
    ) -> int:
        """Store the digest of a token that is valid for `seconds`, None: for ever; return its id."""
        return int(
            await self._value(
                "SELECT turnstile.create_token($1, $2, $3, $4, $5, $6)",
                name,
                role,
                None if scope is None else list(scope),
                digest,
                seconds,
                changed_by.json(),
            )
        )

    async def revoke_token(self, token_id: int, changed_by: Caller) -> bool:
        """Revoke a token; False: there is no such token."""
        return bool(await self._value("SELECT turnstile.revoke_token($1, $2)", token_id, changed_by.json()))

    async def note_token_use(self, token_id: int) -> None:
        """Store that a token was used now."""
        await self._value("SELECT turnstile.note_token_use($1)", token_id)

    async def _row(self, statement: str, *arguments: object) -> asyncpg.Record:
        row = await self._database.fetchrow(statement, *arguments)
        assert row is not None
        return row

    def _grants(self, row: asyncpg.Record) -> Grants:
        grants = read_grants(row)
        if grants.granted:
            assert self._on_granted is not None
            self._on_granted(grants.granted)
        return grants

    async def _value(self, statement: str, *arguments: object) -> Any:
        return await self._database.fetchval(statement, *arguments)

    async def _column(self, statement: str, *arguments: object) -> list[Any]:
        return [row[0] for row in await self._database.fetch(statement, *arguments)]


def _request_columns(admissions: Sequence[Admission]) -> list[list[Any]]:
    """Return the columns of requests, in the order of the parameters of `admit`."""
    return [
        [a.action_ref for a in admissions],
        [a.parameters_json.decode() for a in admissions],
        [a.concurrency_key for a in admissions],
        [a.idempotency_key for a in admissions],
        [a.delivery_key for a in admissions],
        [a.request_hash for a in admissions],
        [a.run_at for a in admissions],
        [a.timeout for a in admissions],
        [a.ttl for a in admissions],
        [a.callback_url for a in admissions],
        [a.metadata_json.decode() for a in admissions],
        [a.traceparent for a in admissions],
        [a.priority for a in admissions],
    ]


def _columns(
    requests: Sequence[tuple[ExecutionId, str | None]],
) -> tuple[list[ExecutionId], list[str | None]]:
    return [request[0] for request in requests], [request[1] for request in requests]


def _json(caller: Caller | None) -> str | None:
    return None if caller is None else caller.json()


def _locks(row: asyncpg.Record) -> QueueLocks:
    return QueueLocks(row["blocked_queue_ids"] or (), row["free_queue_ids"] or ())
