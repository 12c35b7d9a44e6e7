"""The one door to the lines: admit, grant, settle, cancel, retry, each one statement and one commit.

In: batches of requests and completions, in arrival order. Out: what became of each, and the slots granted
in the same transaction, which the caller must hand over (`executor.hand_over`). P1 and P2 are kept by the
statements in `common.sql`; nothing here decides.
"""

from collections.abc import Sequence

import asyncpg

from common.action_definition import ActionDefinition, action_columns
from common.database import REFUSED_BY_DATABASE, Database
from common.domain.errors import Code
from common.domain.identifiers import Attempt, ExecutionId, QueueId
from common.domain.states import Status
from common.requests import json_text
from executor import transitions
from executor.decisions import (
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
)


class QueueManager:
    """Calls the protocol's statements for the executor service. Safe to share between tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def admit(self, admissions: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
        """Take requests into their lines in the order given; one verdict each, in that order.

        A batch that the database refuses is split until the bad request stands alone. Raises Unavailable:
        nothing or all of it was admitted, and admitting it again is harmless where it carries a key.
        """
        if not admissions:
            return [], Grants(granted=[])
        traced, spans = transitions.admitting(admissions)
        verdicts, grants = await self._in_halves(traced)
        transitions.admitted(traced, verdicts, spans)
        return verdicts, grants

    async def settle(self, completions: Sequence[tuple[ExecutionId, Attempt, Status | None]]) -> Settled:
        """Free the slots of these attempts, once each however often they come, and grant them on.

        With each the end that its message told; None where the message told no end.
        """
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.settle($1, $2, $3)",
            [c[0] for c in completions],
            [c[1] for c in completions],
            [c[2] for c in completions],
        )
        assert row is not None
        return Settled(
            count=row["settled_count"],
            early=frozenset(row["early_ids"] or ()),
            unknown=frozenset(row["unknown_ids"] or ()),
            grants=grants_of(row),
            ids=frozenset(row["settled_ids"] or ()),
            callbacks=row["callback_count"],
        )

    async def grant(self, queue_ids: Sequence[QueueId]) -> Grants:
        """Give free slots of these queues to the heads of their lines."""
        row = await self._database.fetchrow("SELECT * FROM turnstile.grant_slots($1)", list(queue_ids))
        assert row is not None
        return grants_of(row)

    async def withhold(self, grants: Sequence[Grant]) -> set[ExecutionId]:
        """Put off the offers of those that no worker could run until one could; return them."""
        rows = await self._database.fetch(
            "SELECT turnstile.withhold_offers($1, $2)",
            [grant.execution_id for grant in grants],
            [grant.attempt for grant in grants],
        )
        return {row[0] for row in rows}

    async def cancel(self, requests: Sequence[tuple[ExecutionId, str | None]]) -> list[Move]:
        """End what has not started; what runs comes back as `running`: its worker is to be asked.

        Executions that do not exist are left out.
        """
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.cancel($1, $2)", [r[0] for r in requests], [r[1] for r in requests]
        )
        return [moved(row) for row in rows if row["status"] is not None]

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
        """Ask again for what these ended executions asked for; each may carry an idempotency key."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.retry($1, $2, $3)",
            [r[0] for r in requests],
            [r[1] for r in requests],
            traceparent,
        )
        assert row is not None
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
        requests = [a.request for a in admissions]
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            [r.action_ref for r in requests],
            [json_text(r.parameters) for r in requests],
            [r.concurrency_key for r in requests],
            [r.idempotency_key for r in requests],
            [a.delivery_key for a in admissions],
            [a.request_hash for a in admissions],
            [r.run_at for r in requests],
            [r.timeout for r in requests],
            [r.ttl for r in requests],
            [r.callback_url for r in requests],
            [json_text(r.metadata) for r in requests],
            [a.traceparent for a in admissions],
        )
        assert row is not None
        verdicts = [
            _verdict(item, r.action_ref, r.idempotency_key)
            for item, r in zip(row["admitted"], requests, strict=True)
        ]
        return verdicts, grants_of(row)

    async def _in_halves(self, admissions: Sequence[Admission]) -> tuple[list[Verdict], Grants]:
        try:
            return await self._admit_batch(admissions)
        except REFUSED_BY_DATABASE as error:
            if len(admissions) == 1:
                refusal = Rejected(code=Code.INVALID_MESSAGE, message=f"the database refuses it: {error}")
                return [refusal], Grants(granted=[])
        middle = len(admissions) // 2
        first, first_grants = await self._in_halves(admissions[:middle])
        second, second_grants = await self._in_halves(admissions[middle:])
        return first + second, Grants(
            granted=first_grants.granted + second_grants.granted,
            more_queue_ids=first_grants.more_queue_ids + second_grants.more_queue_ids,
        )


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
    return f"parameters: {detail}"
