"""The worker's statements on the record: claim, finish, hand back, register.

Its database role may do nothing else.

In: attempts, in batches. Out: a verdict for each. P6 is kept by the statements: each names worker and
attempt, and requires a live lease. All may be said again after an unknown outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

import asyncpg
from pydantic_core import from_json

from common.action_definition import ActionDefinition, action_columns
from common.database import Database
from common.domain.identifiers import Attempt, ExecutionId, WorkerId
from common.domain.retries import RetryPolicy
from common.domain.states import Status
from common.requests import json_text

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


class Record:
    """The worker's door to the database."""

    def __init__(self, database: Database, worker_id: WorkerId) -> None:
        self._database = database
        self._worker_id = worker_id

    async def claim(self, offers: Sequence[Offer]) -> list[Claim | Verdict]:
        """Claim attempts; one answer each, in order."""
        ordered = sorted(offers, key=lambda offer: offer.execution_id)
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.claim($1, $2, $3)",
            self._worker_id,
            [offer.execution_id for offer in ordered],
            [offer.attempt for offer in ordered],
        )
        answers = {(row["execution_id"], row["attempt"]): row for row in rows}
        return [_claim(answers[offer.execution_id, offer.attempt]) for offer in offers]

    async def finish(self, reports: Sequence[Report]) -> list[Finished]:
        """Report ends; one answer each, in order."""
        ordered = sorted(reports, key=lambda report: report.execution_id)
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.finish($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            self._worker_id,
            [r.execution_id for r in ordered],
            [r.attempt for r in ordered],
            [r.status.value for r in ordered],
            [r.result_json for r in ordered],
            [r.error_type for r in ordered],
            [r.error_message for r in ordered],
            [r.log for r in ordered],
            [r.retry_delay_seconds for r in ordered],
        )
        answers = {(row["execution_id"], row["attempt"]): row for row in rows}
        return [_finished(answers[r.execution_id, r.attempt]) for r in reports]

    async def hand_back(self, offers: Sequence[Offer]) -> set[ExecutionId]:
        """Give running attempts back to the heads of their lines; returns those that were given back."""
        rows = await self._database.fetch(
            "SELECT execution_id FROM turnstile.hand_back($1, $2, $3)",
            self._worker_id,
            [offer.execution_id for offer in offers],
            [offer.attempt for offer in offers],
        )
        return {row["execution_id"] for row in rows}

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
    verdict = Verdict(row["verdict"])
    if verdict is not Verdict.CLAIMED:
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
    )


def _finished(row: asyncpg.Record) -> Finished:
    status = None if row["status"] is None else Status(row["status"])
    return Finished(verdict=Verdict(row["verdict"]), status=status, ended_at=row["ended_at"])


def _difference(wanted: dict[str, object], stored: dict[str, object]) -> Difference | None:
    fields = tuple(sorted(name for name, value in wanted.items() if stored.get(name) != value))
    return Difference(ref=str(wanted["ref"]), fields=fields) if fields else None
