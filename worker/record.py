"""The worker's statements on the record: claim, finish, hand back, log, register: all that its role may do.

In: attempts, in batches. Out: a verdict for each. P6 is kept by the statements: each names worker and
attempt, and requires a live lease. All may be said again after an unknown outcome.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import asyncpg
from pydantic_core import from_json

from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, WorkerId
from turnstile.common.domain.retries import RetryPolicy
from turnstile.common.domain.states import Status
from turnstile.common.requests import json_text
from turnstile.worker.attempt_log import LogPiece

RunnerKind = Literal["python", "command", "http"]


class Verdict(StrEnum):
    """What the record said to a claim or a finish."""

    CLAIMED = "claimed"
    APPLIED = "applied"
    ALREADY = "already"
    """It was said before, by this worker: an answer had been lost."""
    STALE = "stale"
    """The attempt is over, or somebody else's."""
    UNKNOWN = "unknown"
    """There is no such execution, yet."""
    LEASE_OVER = "lease_over"
    """Nothing was changed: this worker's lease has to be renewed first."""
    NOT_SERVED = "not_served"
    """This worker does not have the action's code; another one of the pool may."""
    HELD = "held"
    """Nothing was changed: another database session holds the execution, for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One attempt that a worker may claim."""

    execution_id: ExecutionId
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt that this worker holds: all that is needed to run it."""

    execution_id: ExecutionId
    attempt: Attempt
    action_id: int
    action_ref: str
    runner: RunnerKind
    entrypoint_json: str | None
    parameters_json: str
    timeout_seconds: float | None
    failures: int
    retry: RetryPolicy
    traceparent: str | None
    waited_seconds: float
    """From its place in line to this claim, on the database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How one attempt ended."""

    execution_id: ExecutionId
    attempt: Attempt
    status: Status
    result_json: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    log: str | None = None
    log_start: int = 0
    """How many characters of the log came before `log`: those that the record has already."""
    retry_delay_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What the record made of a report. `status` is where the execution stands now."""

    verdict: Verdict
    status: Status | None
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An action whose definition in the database is not the one in the code. The database wins."""

    ref: str
    fields: tuple[str, ...]


_EXCHANGE: Final = """
SELECT ARRAY(
           SELECT f FROM turnstile.finish($1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) f
       ) AS finished,
       ARRAY(SELECT c FROM turnstile.claim($1, $2, $3, $4, $14, $15) c) AS claimed
"""
"""In this order: what ran has mostly lower ids than what starts, and others lock executions ascending."""
_REFUSED: Final = "ReportRefused"
_LOCK_TIMEOUT_MS: Final = 250
"""Longest wait for an execution that another database session holds; then the others go on without it."""


class Record:
    """The worker's door to the database."""

    def __init__(
        self, database: Database, worker_id: WorkerId, *, served_refs: Sequence[str] | None = None
    ) -> None:
        """`served_refs` names the actions whose code this worker has; None: all there are."""
        self._database = database
        self._worker_id = worker_id
        self._served_refs = None if served_refs is None else list(served_refs)
        self._held: set[ExecutionId] = set()

    async def exchange(self, wishes: Sequence[Offer | Report]) -> list[Claim | Verdict | Finished]:
        """Claim offers and report ends in one commit; one answer each, in order.

        A batch that the database refuses is split until the bad report stands alone: that attempt ends as
        failed, with the refusal as its error, and nobody else's is held up.
        """
        try:
            return await self._exchange_unheld(wishes)
        except REFUSED_BY_DATABASE as error:
            if len(wishes) == 1:
                (wish,) = wishes
                if isinstance(wish, Offer) or wish.error_type == _REFUSED:
                    raise
                return await self.exchange([_as_refused(wish, error)])
        middle = len(wishes) // 2
        return await self.exchange(wishes[:middle]) + await self.exchange(wishes[middle:])

    async def _exchange_unheld(self, wishes: Sequence[Offer | Report]) -> list[Claim | Verdict | Finished]:
        """Exchange, and leave out what other database sessions hold: until they let go it is only tried."""
        try:
            answers = await self._exchange_batch(wishes, self._held)
        except asyncpg.LockNotAvailableError:
            answers = await self._exchange_batch(wishes, None)
        for wish, answer in zip(wishes, answers, strict=True):
            if Verdict.HELD in (answer, getattr(answer, "verdict", None)):
                self._held.add(wish.execution_id)
            else:
                self._held.discard(wish.execution_id)
        return answers

    async def _exchange_batch(
        self, wishes: Sequence[Offer | Report], suspects: Collection[ExecutionId] | None
    ) -> list[Claim | Verdict | Finished]:
        # Ascending, so that two batches never wait for each other's rows crosswise.
        offers = sorted((w for w in wishes if isinstance(w, Offer)), key=lambda w: w.execution_id)
        reports = sorted((w for w in wishes if isinstance(w, Report)), key=lambda w: w.execution_id)
        row = await self._database.fetchrow(
            _EXCHANGE,
            self._worker_id,
            [o.execution_id for o in offers],
            [o.attempt for o in offers],
            self._served_refs,
            [r.execution_id for r in reports],
            [r.attempt for r in reports],
            [r.status.value for r in reports],
            [r.result_json for r in reports],
            [r.error_type for r in reports],
            [r.error_message for r in reports],
            [r.log for r in reports],
            [r.retry_delay_seconds for r in reports],
            [r.log_start for r in reports],
            _LOCK_TIMEOUT_MS,
            None if suspects is None else list(suspects),
        )
        assert row is not None
        claims = {(c["execution_id"], c["attempt"]): c for c in row["claimed"]}
        ends = {(f["execution_id"], f["attempt"]): f for f in row["finished"]}
        return [
            _claim(claims[w.execution_id, w.attempt])
            if isinstance(w, Offer)
            else _finished(ends[w.execution_id, w.attempt])
            for w in wishes
        ]

    async def hand_back(self, offers: Sequence[Offer]) -> set[ExecutionId]:
        """Give running attempts back to the heads of their lines; returns those that were given back."""
        rows = await self._database.fetch(
            "SELECT execution_id FROM turnstile.hand_back($1, $2, $3)",
            self._worker_id,
            [offer.execution_id for offer in offers],
            [offer.attempt for offer in offers],
        )
        return {row["execution_id"] for row in rows}

    async def append_logs(self, pieces: Sequence[tuple[Offer, LogPiece]]) -> bool:
        """Add to the logs of running attempts; False: this worker's lease has to be renewed first.

        A piece of an attempt that is not this worker's any more is passed over.
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

    async def register_actions(self, definitions: Sequence[ActionDefinition]) -> list[Difference]:
        """Store what the database lacks; returns what it has otherwise than the code."""
        wanted = {d.ref: action_columns(d) for d in definitions}
        rows = await self._database.fetch(
            "SELECT ref, to_jsonb(a) AS stored FROM turnstile.register_actions($1) a",
            json_text([*wanted.values()]),
        )
        return [
            d for row in rows if (d := _difference(wanted[row["ref"]], from_json(row["stored"]))) is not None
        ]


def _claim(row: asyncpg.Record) -> Claim | Verdict:
    if (verdict := Verdict(row["verdict"])) is not Verdict.CLAIMED:
        return verdict
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
        retry=RetryPolicy(
            max_attempts=row["retry_max_attempts"],
            delay_seconds=row["retry_delay_seconds"],
            factor=row["retry_factor"],
            max_delay_seconds=row["retry_max_delay_seconds"],
            jitter=row["retry_jitter"],
        ),
        traceparent=row["traceparent"],
        waited_seconds=row["waited_seconds"],
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


def _difference(wanted: dict[str, object], stored: dict[str, object]) -> Difference | None:
    fields = tuple(sorted(name for name, value in wanted.items() if stored.get(name) != value))
    return Difference(ref=str(wanted["ref"]), fields=fields) if fields else None
