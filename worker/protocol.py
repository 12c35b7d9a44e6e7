"""Calls every SQL function `turnstile.*` that the worker uses, and decodes the rows that they return.

In: attempts, in batches. Out: one typed answer for each. The SQL functions keep P6: claim, finish, hand back
and log name the worker and the attempt, and require a live lease. Every call may be repeated when its result
is unknown.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import asyncpg
from pydantic_core import from_json

from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.database import (
    MISSING_SCHEMA,
    OLDER_SCHEMA,
    REFUSED_BY_DATABASE,
    Database,
    DatabaseTimeouts,
    SchemaState,
)
from turnstile.common.domain.identifiers import Attempt, ExecutionId, WorkerId
from turnstile.common.domain.retries import RetryPolicy
from turnstile.common.domain.states import Status
from turnstile.common.requests import json_text
from turnstile.common.statements import SCHEMA, protocol_hash
from turnstile.worker.differences import Difference, difference
from turnstile.worker.logs import LogPiece
from turnstile.worker.progress import Progress
from turnstile.worker.schemas import ActionSchemas

if TYPE_CHECKING:
    from turnstile.common.database import Connection


class Verdict(StrEnum):
    """How the database answered a claim or a finish."""

    CLAIMED = "claimed"
    APPLIED = "applied"
    ALREADY = "already"
    """This worker made the same call before, and its answer was lost."""
    STALE = "stale"
    """The attempt has ended, or belongs to another worker."""
    UNKNOWN = "unknown"
    """No such execution exists yet."""
    LEASE_OVER = "lease_over"
    """Nothing was changed: this worker must renew its lease first."""
    NOT_SERVED = "not_served"
    """This worker does not have the action's code; another worker of the pool may have it."""
    HELD = "held"
    """Nothing was changed: another database session has locked the execution."""


class Offer(NamedTuple):
    """One attempt that a worker may claim."""

    execution_id: ExecutionId
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt that this worker holds, with all that is needed to run it."""

    execution_id: ExecutionId
    attempt: Attempt
    action_id: int
    action_ref: str
    runner: Literal["python", "command", "http"]
    entrypoint_json: str | None
    parameters_json: str
    timeout_seconds: float | None
    failures: int
    retry: RetryPolicy
    traceparent: str | None
    waited_seconds: float
    """From the enqueue to this claim, on the database's clock."""
    metadata_json: str
    concurrency_key: str | None
    idempotency_key: str | None

    @property
    def offer(self) -> Offer:
        """The attempt as it was offered."""
        return Offer(execution_id=self.execution_id, attempt=self.attempt)


class Report(NamedTuple):
    """How one attempt ended; the fields are in the order of the arguments of `turnstile.exchange`."""

    execution_id: ExecutionId
    attempt: Attempt
    status: Status
    result_json: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    log: str | None = None
    retry_delay_seconds: float | None = None
    log_start: int = 0
    """How many characters of the log precede `log`; the database has those already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer to a report. `status` is the execution's status now."""

    verdict: Verdict
    status: Status | None
    ended_at: datetime


Request: TypeAlias = Offer | Report
Answer: TypeAlias = Claim | Verdict | Finished

_EXCHANGE: Final = """
SELECT finished, claimed
FROM turnstile.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
"""
_REFUSED: Final = "ReportRefused"
_NO_SCHEMAS: Final[Mapping[str, ActionSchemas]] = {}
_LOCK_TIMEOUT_MS: Final = 250
"""Longest wait for an execution locked by another database session; then the batch goes on without it."""


async def schema_state(connection: "Connection") -> SchemaState:
    """Return what the schema of the database means for a worker of this version.

    A newer one can be used: during an upgrade workers of the previous version run on.
    """
    row = await connection.fetchrow(
        "SELECT to_regnamespace($1) IS NULL AS is_missing,"
        " obj_description(to_regnamespace($1), 'pg_namespace') AS hash,"
        " to_regproc($1 || '.schema_revision') IS NOT NULL AS has_revision",
        SCHEMA,
    )
    assert row is not None
    if row["is_missing"]:
        return SchemaState(trouble=MISSING_SCHEMA)
    # The functions are those of this version, so nothing has to be compared.
    if row["hash"] == protocol_hash():
        return SchemaState()
    if not row["has_revision"]:
        return SchemaState(trouble=OLDER_SCHEMA)
    # Only where the versions differ: the module of the migrations is large.
    from turnstile.migrations.schema_check import SchemaVersion  # noqa: PLC0415  (as above)

    revision = await connection.fetchval("SELECT turnstile.schema_revision()")
    return SchemaVersion(revision, row["hash"] or "").state


def single_connection(url: str, purpose: str, timeout_seconds: float, *, give_up_seconds: float) -> Database:
    """Return a database with one connection, whose calls all have the same timeout."""
    return Database(
        url,
        application_name=f"turnstile worker {purpose}",
        connections_max=1,
        timeouts=DatabaseTimeouts(
            connect_seconds=timeout_seconds,
            acquire_seconds=timeout_seconds,
            command_seconds=timeout_seconds,
            give_up_seconds=give_up_seconds,
            close_seconds=timeout_seconds,
        ),
    )


class WorkerProtocol:
    """The calls of one worker id."""

    def __init__(
        self, database: Database, worker_id: WorkerId, *, served_refs: Sequence[str] | None = None
    ) -> None:
        """`served_refs` names the actions whose code this worker has; None: all actions."""
        self._database = database
        self._worker_id = worker_id
        self._served_refs = None if served_refs is None else list(served_refs)
        self._held: set[ExecutionId] = set()

    async def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        """Claim offers and report outcomes in one commit; return one answer for each, in order.

        A batch that the database refuses is split until the bad report is alone: that attempt ends as
        failed, with the refusal as its error, and the other reports are applied.
        """
        try:
            return await self._exchange_unlocked(requests)
        except REFUSED_BY_DATABASE as error:
            if len(requests) == 1:
                (request,) = requests
                if isinstance(request, Offer) or request.error_type == _REFUSED:
                    raise
                return await self.exchange([_as_refused(request, error)])
        middle = len(requests) // 2
        return await self.exchange(requests[:middle]) + await self.exchange(requests[middle:])

    async def _exchange_unlocked(self, requests: Sequence[Request]) -> list[Answer]:
        """Exchange without waiting for executions that are known to be locked by other sessions."""
        try:
            answers = await self._exchange_batch(requests, self._held)
        except asyncpg.LockNotAvailableError:
            answers = await self._exchange_batch(requests, None)
        for request, answer in zip(requests, answers, strict=True):
            if (answer.verdict if isinstance(answer, Finished) else answer) is Verdict.HELD:
                self._held.add(request.execution_id)
            else:
                self._held.discard(request.execution_id)
        return answers

    async def _exchange_batch(
        self, requests: Sequence[Request], suspects: Collection[ExecutionId] | None
    ) -> list[Answer]:
        # Ascending, so that two batches never wait for each other's rows.
        offers = sorted(r for r in requests if isinstance(r, Offer))
        reports = sorted((r for r in requests if isinstance(r, Report)), key=lambda r: r.execution_id)
        rows = await self._database.fetch(
            _EXCHANGE,
            self._worker_id,
            *_columns(Offer, offers),
            self._served_refs,
            *_columns(Report, reports),
            _LOCK_TIMEOUT_MS,
            None if suspects is None else list(suspects),
        )
        claims: dict[Offer, Claim | Verdict] = {}
        outcomes: dict[Offer, Finished] = {}
        for finished, claimed in rows:
            if claimed is not None:
                claims[Offer(claimed["execution_id"], claimed["attempt"])] = _claim(claimed)
            else:
                outcomes[Offer(finished["execution_id"], finished["attempt"])] = _finished(finished)
        return [
            claims[r] if isinstance(r, Offer) else outcomes[Offer(r.execution_id, r.attempt)]
            for r in requests
        ]

    async def hand_back(self, offers: Sequence[Offer]) -> set[ExecutionId]:
        """Return running attempts to the heads of their queues; return those that this worker still held."""
        rows = await self._database.fetch(
            "SELECT execution_id FROM turnstile.hand_back($1, $2, $3)",
            self._worker_id,
            [offer.execution_id for offer in offers],
            [offer.attempt for offer in offers],
        )
        return {row["execution_id"] for row in rows}

    async def append_logs(self, pieces: Sequence[tuple[Offer, LogPiece]]) -> bool:
        """Append to the logs of running attempts; False: this worker must renew its lease first.

        A piece of an attempt that this worker no longer holds is ignored.
        """
        applied: bool = await self._database.fetchval(
            "SELECT turnstile.append_logs($1, $2, $3, $4, $5)",
            self._worker_id,
            [offer.execution_id for offer, _ in pieces],
            [offer.attempt for offer, _ in pieces],
            [piece.start for _, piece in pieces],
            [piece.text for _, piece in pieces],
        )
        return applied

    async def report_progress(self, reports: Sequence[tuple[Offer, Progress]]) -> bool:
        """Store the progress of running attempts; False if the lease is over."""
        return bool(
            await self._database.fetchval(
                "SELECT turnstile.report_progress($1, $2, $3, $4, $5, $6)",
                self._worker_id,
                [offer.execution_id for offer, _ in reports],
                [offer.attempt for offer, _ in reports],
                [progress.done for _, progress in reports],
                [progress.total for _, progress in reports],
                [progress.message for _, progress in reports],
            )
        )

    async def register_actions(
        self, definitions: Sequence[ActionDefinition], schemas: Mapping[str, ActionSchemas] = _NO_SCHEMAS
    ) -> list[Difference]:
        """Store the actions that the database lacks; return those that differ from the code."""
        wanted = {d.ref: action_columns(d) for d in definitions}
        rows = await self._database.fetch(
            "SELECT ref, to_jsonb(a) AS stored FROM turnstile.register_actions($1) a",
            json_text([*wanted.values()]),
        )
        found = (
            difference(wanted[row["ref"]], from_json(row["stored"]), schemas.get(row["ref"])) for row in rows
        )
        return [each for each in found if each is not None]

    async def register_worker(
        self,
        *,
        name: str,
        host: str,
        pid: int,
        pools: Sequence[str],
        concurrency: int,
        offers_per_message: int,
        lease_seconds: float,
        version: str,
        drain_seconds: float,
        stop_grace_seconds: float,
        start_notes: Sequence[str],
        schemas: Mapping[str, ActionSchemas] | None = None,
    ) -> None:
        """Insert the worker's row, with the schemas of its actions, and start its lease.

        `drain_seconds` is the longest time from a request to drain to the hand-back; `start_notes` are the
        warnings of the start, one line each.
        """
        await self._database.fetch(
            "SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            self._worker_id,
            name,
            host,
            pid,
            list(pools),
            concurrency,
            lease_seconds,
            self._served_refs,
            offers_per_message,
            version,
            drain_seconds,
            stop_grace_seconds,
            [note.replace("\0", "") for note in start_notes],
            None
            if schemas is None
            else json_text(
                [
                    {"ref": ref, "parameters": each.parameters, "result": each.result}
                    for ref, each in schemas.items()
                ]
            ),
        )

    async def renew(self, lease_seconds: float, *, not_ready: str | None) -> tuple[bool, bool]:
        """Renew the lease; return whether the worker still has one, and whether it must drain.

        `not_ready`: why the worker can run nothing now.
        """
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.renew($1, $2, $3)", self._worker_id, lease_seconds, not_ready
        )
        assert row is not None
        return row["alive"], row["draining"]

    async def start_drain(self) -> None:
        """Report that this worker claims nothing new and exits: its capacity counts no longer."""
        await self._database.fetch("SELECT turnstile.start_drain($1)", self._worker_id)

    async def sign_off(self) -> None:
        """End the lease at once, so that whatever this worker still holds is reclaimed."""
        await self._database.fetch("SELECT turnstile.sign_off($1)", self._worker_id)


def _columns(kind: type[Offer | Report], rows: Sequence[Request]) -> Iterable[Sequence[object]]:
    """Return one sequence per field, to be passed as arrays."""
    return zip(*rows, strict=True) if rows else [()] * len(kind._fields)


def _claim(row: asyncpg.Record) -> Claim | Verdict:
    if row["verdict"] != Verdict.CLAIMED:
        return Verdict(row["verdict"])
    return Claim(
        execution_id=row["execution_id"],
        attempt=row["attempt"],
        action_id=row["action_id"],
        action_ref=row["action_ref"],
        runner=row["runner"],
        entrypoint_json=row["entrypoint"],
        parameters_json=row["parameters"],
        timeout_seconds=row["timeout_seconds"],
        failures=row["failures"],
        retry=_retry_policy(
            row["retry_max_attempts"],
            row["retry_delay_seconds"],
            row["retry_factor"],
            row["retry_max_delay_seconds"],
            row["retry_jitter"],
        ),
        traceparent=row["traceparent"],
        waited_seconds=row["waited_seconds"],
        metadata_json=row["metadata"],
        concurrency_key=row["concurrency_key"],
        idempotency_key=row["idempotency_key"],
    )


@lru_cache
def _retry_policy(
    max_attempts: int, delay_seconds: float, factor: float, max_delay_seconds: float, jitter: float
) -> RetryPolicy:
    # Equal for all claims of an action.
    return RetryPolicy(
        max_attempts=max_attempts,
        delay_seconds=delay_seconds,
        factor=factor,
        max_delay_seconds=max_delay_seconds,
        jitter=jitter,
    )


def _as_refused(report: Report, error: Exception) -> Report:
    return Report(
        execution_id=report.execution_id,
        attempt=report.attempt,
        status=Status.FAILED,
        error_type=_REFUSED,
        error_message=f"the database refuses what the attempt reported: {error}"[:1000],
    )


def _finished(row: asyncpg.Record) -> Finished:
    status = None if row["status"] is None else Status(row["status"])
    return Finished(verdict=Verdict(row["verdict"]), status=status, ended_at=row["ended_at"])
