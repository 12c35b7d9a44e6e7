"""What one attempt takes in and gives out, as values; pure but for the spread of retries.

In: an offer as it was delivered, a claim, an outcome, what the record made of it. Out: the call for a runner,
the report for the record, the messages for the executor. Next: `worker.attempt` says when each is due.
"""

import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from pydantic_core import from_json

from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.documents import readable
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.outcomes import Completed, Failed, Outcome, failure_of, status_of
from turnstile.common.domain.retries import retry_delay_seconds
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import completed_message, slot_message
from turnstile.common.messages import Error, ExecutionCompleted, ExecutionScheduled, StatusChanged
from turnstile.common.requests import check_schema_version, read_json, read_model
from turnstile.worker.attempt_log import LogTail
from turnstile.worker.record import Claim, Offer, Report
from turnstile.worker.runners import Call, RunReport, StopRequest

_SCHEDULED_BYTES_MAX: Final = 64 * 1024


def offer_in(delivery: Delivery) -> Offer:
    """Return the attempt that a delivery offers; raises Refusal."""
    check_schema_version(delivery.headers)
    scheduled = read_model(ExecutionScheduled, read_json(delivery.body, bytes_max=_SCHEDULED_BYTES_MAX))
    if not (0 < scheduled.execution_id < 2**63 and 0 < scheduled.attempt < 2**31):
        raise Refusal(Code.INVALID_MESSAGE, "execution_id, attempt: out of range")
    return Offer(execution_id=ExecutionId(scheduled.execution_id), attempt=Attempt(scheduled.attempt))


def call_of(claim: Claim, stop: StopRequest, watch_log: Callable[[LogTail], object]) -> Call:
    """Return what the runner is told."""
    return Call(
        execution_id=claim.execution_id,
        attempt=claim.attempt,
        action_ref=claim.action_ref,
        entrypoint=None if claim.entrypoint_json is None else from_json(claim.entrypoint_json),
        parameters_json=claim.parameters_json,
        timeout_seconds=claim.timeout_seconds,
        traceparent=claim.traceparent,
        stop=stop,
        watch_log=watch_log,
    )


def report_of(claim: Claim, outcome: Outcome, run: RunReport) -> Report:
    """Return what the record is told."""
    failure = failure_of(outcome)
    return Report(
        execution_id=claim.execution_id,
        attempt=claim.attempt,
        status=status_of(outcome),
        result_json=outcome.result_json if isinstance(outcome, Completed) else None,
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        log=run.log or None,
        log_start=run.log_start,
        retry_delay_seconds=_retry_delay_seconds(claim, outcome),
    )


def told_of(outcome: Outcome, *, result_bytes_max: int) -> Outcome:
    """Return what others are told of an outcome: a larger result is left out."""
    if isinstance(outcome, Completed) and len(outcome.result_json) > result_bytes_max:
        return Completed(result_json="null")
    return outcome


def end_message(claim: Claim, outcome: Outcome, status: Status, ended_at: datetime) -> Outgoing:
    """Return what the executor is told of an attempt that ended: the end, or that its slot is free."""
    if not is_terminal(status):
        return slot_message(claim.execution_id, claim.attempt, claim.action_ref, status)
    failure = failure_of(outcome)
    completed = ExecutionCompleted(
        execution_id=claim.execution_id,
        action_id=claim.action_id,
        action_ref=claim.action_ref,
        status=status,
        result=readable(outcome.result_json) if isinstance(outcome, Completed) else None,
        error=None if failure is None else Error(type=failure.type, message=failure.message),
        attempt=claim.attempt,
        completed_at=ended_at,
    )
    return completed_message(completed, app_id="worker", traceparent=claim.traceparent)


def status_changed(claim: Claim, status: Status, previous: Status, at: datetime) -> StatusChanged:
    """Return what whoever listens is told of a move."""
    return StatusChanged(
        execution_id=claim.execution_id,
        action_ref=claim.action_ref,
        status=status,
        previous_status=previous,
        attempt=claim.attempt,
        changed_at=at,
    )


def log_fields(attempt: Claim | Offer) -> dict[str, object]:
    """Return what a log line says of the attempt that it is about."""
    fields: dict[str, object] = {"execution_id": attempt.execution_id, "attempt": attempt.attempt}
    return fields | {"action_ref": attempt.action_ref} if isinstance(attempt, Claim) else fields


def _retry_delay_seconds(claim: Claim, outcome: Outcome) -> float | None:
    if not isinstance(outcome, Failed) or not outcome.retryable:
        return None
    wait = retry_delay_seconds(claim.retry, failures=claim.failures + 1, spread=random.uniform(-1, 1))
    return wait if wait is None or outcome.delay_seconds is None else outcome.delay_seconds
