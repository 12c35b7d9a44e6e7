"""The one door to the lines: admit, grant, settle, cancel, retry, each one statement and one commit.

In: batches of requests and completions, in arrival order. Out: what became of each, and the slots granted
in the same transaction, which the caller must hand over (`executor.hand_over`). P1 and P2 are kept by the
statements in `common.sql`; nothing here decides.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import asyncpg

from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.errors import Code, Unavailable
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.requests import json_text
from turnstile.executor import transitions
from turnstile.executor.decisions import (
    Accepted,
    Admission,
    Deletion,
    Grant,
    Grants,
    Move,
    Rejected,
    Retried,
    Settled,
    Verdict,
    held,
    is_held,
)
from turnstile.executor.held_queues import HeldQueues

LOCK_TIMEOUT_SECONDS: Final = 0.25
"""Many times what a batch holds a lock, and little beside what a submitter waits anyway."""

_REFUSED: Final = (*REFUSED_BY_DATABASE, asyncpg.LockNotAvailableError)
"""A batch is divided for these; alone, an item is refused, or held by another session."""
Item = TypeVar("Item")
Part = TypeVar("Part")


class QueueManager:
    """Calls the protocol's statements for the executor service. Safe to share between tasks.

    A statement waits `lock_timeout_seconds` for a row that another session holds (None: for ever). Then it is
    asked again for all that can be locked; what cannot comes back as held, with all behind it in its queue.
    """

    def __init__(
        self, database: Database, *, lock_timeout_seconds: float | None = LOCK_TIMEOUT_SECONDS
    ) -> None:
        self._database = database
        self._wait_ms = None if lock_timeout_seconds is None else max(1, round(lock_timeout_seconds * 1000))
        self._held = HeldQueues()

    async def admit(self, admissions: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
        """Take requests into their lines in the order given; one verdict each, in that order.

        A batch that the database refuses is split until the bad request stands alone. Where it falls out in
        between, only the first ones have a verdict: those are committed, and theirs are the grants. Raises
        Unavailable: nothing or all of it was admitted, and admitting it again is harmless where it carries a
        key.
        """
        traced, spans = transitions.admitting(admissions)
        held_refs: set[str] = set()

        async def admit(part: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
            # What comes behind a held request must not pass it, though the row may be free by now (P2).
            free = [a for a in part if a.action_ref not in held_refs]
            verdicts, grants = await self._admit_batch(free) if free else ([], Grants(granted=[]))
            in_order = iter(verdicts)
            all_verdicts = [held(a.action_ref) if a.action_ref in held_refs else next(in_order) for a in part]
            held_refs.update(a.action_ref for a, v in zip(part, all_verdicts, strict=True) if is_held(v))
            return all_verdicts, grants

        def refuse(admission: Admission, error: Exception) -> tuple[list[Verdict], Grants]:
            if isinstance(error, asyncpg.LockNotAvailableError):
                held_refs.add(admission.action_ref)
                return [held(admission.action_ref)], Grants(granted=[])
            refusal = Rejected(code=Code.INVALID_MESSAGE, message=f"the database refuses it: {error}")
            return [refusal], Grants(granted=[])

        parts = await _divided(traced, admit, refuse)
        verdicts = [verdict for decided, _ in parts for verdict in decided]
        transitions.admitted(traced[: len(verdicts)], verdicts, spans)
        return verdicts, sum((grants for _, grants in parts), start=Grants(granted=[]))

    async def settle(self, completions: Sequence[tuple[ExecutionId, Attempt, Status | None]]) -> Settled:
        """Free the slots of these attempts, once each however often they come, and grant them on.

        With each the end that its message told; None where the message told no end. A batch that the database
        refuses is split, as by `admit`; `decided` tells how many were settled then.
        """
        parts = await _divided(completions, self._settle_batch, _unsettled)
        return sum(parts, start=Settled())

    async def _settle_batch(
        self, completions: Sequence[tuple[ExecutionId, Attempt, Status | None]]
    ) -> Settled:
        row = await self._bounded(
            "SELECT * FROM turnstile.settle($3, $4, $1, $2, $5)",
            [c[0] for c in completions],
            [c[1] for c in completions],
            [c[2] for c in completions],
        )
        return Settled(
            decided=len(completions),
            count=row["settled_count"],
            early=frozenset(row["early_ids"] or ()),
            unknown=frozenset(row["unknown_ids"] or ()),
            grants=grants_of(row),
            ids=frozenset(row["settled_ids"] or ()),
            callbacks=row["callback_count"],
            held=frozenset(row["blocked_ids"] or ()),
        )

    async def grant(self, queue_ids: Sequence[QueueId]) -> Grants:
        """Give free slots of these queues to the heads of their lines."""
        try:
            row = await self._bounded("SELECT * FROM turnstile.grant_slots($3, $1, $2)", list(queue_ids))
        except asyncpg.LockNotAvailableError:
            if len(queue_ids) == 1:
                return Grants(granted=[])
            middle = len(queue_ids) // 2
            return (await self.grant(queue_ids[:middle])) + (await self.grant(queue_ids[middle:]))
        return grants_of(row)

    async def withhold(self, grants: Sequence[Grant]) -> set[ExecutionId]:
        """Put off the offers of those that no worker could run until one could; return them."""
        rows = await self._database.fetch(
            "SELECT turnstile.withhold_offers($1, $2)",
            [grant.execution_id for grant in grants],
            [grant.attempt for grant in grants],
        )
        return {row[0] for row in rows}

    async def cancel(
        self, requests: Sequence[tuple[ExecutionId, str | None]]
    ) -> tuple[list[Move], frozenset[ExecutionId]]:
        """End what has not started; what runs comes back as `running`: its worker is to be asked.

        Executions that do not exist are left out. The second value names those that another session holds:
        nothing was done for them.
        """
        ids, reasons = [r[0] for r in requests], [r[1] for r in requests]
        statement = "SELECT * FROM turnstile.cancel_unless_held($3, $4, $1, $2)"
        try:
            row = await self._bounded(statement, ids, reasons)
        except asyncpg.LockNotAvailableError:
            if len(requests) == 1:
                return [], frozenset(ids)
            middle = len(requests) // 2
            first, second = await self.cancel(requests[:middle]), await self.cancel(requests[middle:])
            return first[0] + second[0], first[1] | second[1]
        moves = [moved(item) for item in row["moves"] if item["status"] is not None]
        return moves, frozenset(row["blocked_ids"])

    async def ids_of(self, idempotency_keys: Sequence[str]) -> dict[str, ExecutionId]:
        """Return the executions that these keys name."""
        rows = await self._database.fetch(
            "SELECT idempotency_key, id FROM execution WHERE idempotency_key = ANY ($1)",
            list(idempotency_keys),
        )
        return {row["idempotency_key"]: row["id"] for row in rows}

    async def retry(
        self, requests: Sequence[tuple[ExecutionId, str | None]], *, traceparent: str | None = None
    ) -> tuple[list[Retried], Grants]:
        """Ask again for what these ended executions asked for; each may carry an idempotency key.

        Raises Unavailable where another session holds what is needed.
        """
        ids, keys = [r[0] for r in requests], [r[1] for r in requests]
        try:
            row = await self._bounded(
                "SELECT * FROM turnstile.retry($3, $4, $5, $1, $2)", ids, keys, traceparent
            )
        except asyncpg.LockNotAvailableError as error:
            raise Unavailable(f"database: {error}; another session holds what a retry needs") from error
        answers = zip(row["retried"], requests, strict=True)
        return [_retried(item, key) for item, (_, key) in answers], grants_of(row)

    async def put_actions(
        self, definitions: Sequence[ActionDefinition], *, changed_by: str | None = None
    ) -> Grants:
        """Store definitions, and who changed them; a changed limit or pause acts at once."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.put_actions($1, $2)",
            json_text([action_columns(d) for d in definitions]),
            changed_by,
        )
        assert row is not None
        return grants_of(row)

    async def delete_action(
        self, ref: str, *, cancel_max: int, reason: str, changed_by: str | None
    ) -> Deletion | None:
        """Delete an action if nothing of it runs and no more than `cancel_max` wait, which end with it.

        None: there is no such action.
        """
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.delete_action($1, $2, $3, $4)", ref, cancel_max, reason, changed_by
        )
        assert row is not None
        if row["running"] is None:
            return None
        return Deletion(
            deleted=row["deleted"],
            waiting=int(row["waiting"]),
            running=row["running"],
            ended=[moved(item) for item in row["ended"] or ()],
        )

    async def _admit_batch(self, admissions: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
        row = await self._bounded(
            "SELECT * FROM turnstile.admit("
            "$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, in_wait_ms => $1, in_suspect_ids => $2)",
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
        )
        verdicts = [
            _verdict(item, a.action_ref, a.idempotency_key)
            for item, a in zip(row["admitted"], admissions, strict=True)
        ]
        return verdicts, grants_of(row)

    async def _bounded(self, statement: str, *arguments: object) -> asyncpg.Record:
        """Run a statement that takes how long to wait for locks, and which queues are only to be tried.

        Raises LockNotAvailableError where something else than a queue or an execution is held by others.
        """
        suspects = self._held.suspects()
        try:
            row = await self._database.fetchrow(statement, self._wait_ms, suspects, *arguments)
            if suspects is not None:
                self._held.got_all()
        except asyncpg.LockNotAvailableError:
            self._held.timed_out()
            row = await self._database.fetchrow(statement, self._wait_ms, None, *arguments)
        assert row is not None
        self._held.note(row["blocked_queue_ids"] or (), row["free_queue_ids"] or ())
        return row


async def _divided(
    batch: Sequence[Item],
    decide: Callable[[Sequence[Item]], Awaitable[Part]],
    refuse: Callable[[Item, Exception], Part],
) -> list[Part]:
    """Decide over a batch, in halves where the database refuses it; return what is decided, in order.

    Stops where the database falls out: what is committed by then must not wait for it to come back.
    """
    decided: list[Part] = []
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
        return Settled(decided=1, held=frozenset([completion[0]]))
    return Settled(decided=1, refused={completion[:2]: f"the database refuses it: {error}"})


def moved(row: asyncpg.Record) -> Move:
    """Return one row of type `turnstile.moved`."""
    return Move(
        execution_id=row["execution_id"],
        attempt=row["attempt"],
        action_id=row["action_id"],
        action_ref=row["action_ref"],
        previous_status=Status(row["previous_status"]),
        status=Status(row["status"]),
        worker_id=row["worker_id"],
        moved_at=row["moved_at"],
    )


def grant_of(row: asyncpg.Record) -> Grant:
    """Return one row of type `turnstile.granted`."""
    return Grant(
        execution_id=row["execution_id"],
        attempt=row["attempt"],
        action_ref=row["action_ref"],
        pool=row["pool"],
        traceparent=row["traceparent"],
        waited_seconds=row["waited_seconds"],
    )


def grants_of(row: asyncpg.Record) -> Grants:
    """Return the grants that a statement made, and note them: all grants pass here, once."""
    granted = [grant_of(item) for item in row["granted"] or ()]
    if granted:
        transitions.granted(granted)
    return Grants(
        granted=granted,
        more_queue_ids=list(row["more_queue_ids"] or ()),
    )


def _verdict(item: asyncpg.Record, action_ref: str, idempotency_key: str | None) -> Verdict:
    if item["code"] is None:
        return Accepted(
            execution_id=item["execution_id"],
            status=Status(item["status"]),
            position=item["queue_position"],
            duplicate=item["duplicate"],
        )
    code = Code(item["code"])
    return Rejected(code=code, message=_explanation(item, action_ref, idempotency_key))


def _retried(item: asyncpg.Record, idempotency_key: str | None) -> Retried:
    previous = item["previous_status"]
    asked = previous is not None and (item["code"] is not None or item["execution_id"] is not None)
    return Retried(
        retry_of=item["retry_of"],
        previous_status=None if previous is None else Status(previous),
        action_ref=item["action_ref"],
        verdict=_verdict(item, item["action_ref"], idempotency_key) if asked else None,
    )


def _explanation(item: asyncpg.Record, action_ref: str, idempotency_key: str | None) -> str:
    code, detail = Code(item["code"]), item["detail"]
    if code is Code.UNKNOWN_ACTION:
        return f"action_ref: no action {action_ref!r}; start a worker that serves it, or apply it"
    if code is Code.IDEMPOTENCY_CONFLICT:
        return (
            f"idempotency_key: {idempotency_key!r} already names execution {item['execution_id']}, "
            "which asked for something else; use another key, or repeat the same request"
        )
    if code is Code.QUEUE_FULL:
        return f"action_ref: the queue of {action_ref!r} is full: {detail}; try again later"
    if code is Code.UNAVAILABLE:
        return held(action_ref).message
    return str(detail)
