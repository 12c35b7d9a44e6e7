"""Logs, counts and traces the steps of attempts.

In: a step of one attempt, when it begins or ends. Out: nothing that can fail. One log event per transition:
`execution_started`, `execution_ended`, `execution_handed_back`. A trace shows an attempt as the processing of
its offer, with the run inside it; spans of the action itself and the requests it makes belong to that run.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.outcomes import Failed, Outcome, failure_of
from turnstile.common.domain.states import Status
from turnstile.common.telemetry import tracing
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.logs import clipped
from turnstile.worker.metrics import ENDED, HANDED_BACK, METER, NOT_APPLIED, RUN_SECONDS, WAIT_SECONDS
from turnstile.worker.protocol import Claim, Offer, Verdict

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turnstile.common.telemetry.spans import Spans

logger = logging.getLogger(__name__)

Write: TypeAlias = Literal["claim", "finish", "hand_back"]

_NOT_APPLIED: Final[Mapping[Write, Episodes]] = {
    "claim": Episodes(logger, "claim_not_applied", level=logging.INFO),
    "finish": Episodes(logger, "finish_not_applied", level=logging.INFO),
    "hand_back": Episodes(logger, "hand_back_not_applied", level=logging.INFO),
}
_DROPPED: Final = Episodes(logger, "attempt_dropped", level=logging.INFO)
_FAILURES: Final = frozenset({Status.FAILED, Status.TIMEOUT})
_ERROR_CHARS_MAX: Final = 500


def processing(claim: Claim, delivery: Delivery, *, offered_at: float) -> AbstractContextManager[Claim]:
    """Trace the processing of an offer; yields the claim with this span as its trace context."""
    spans = tracing.active()
    if spans is None:
        return nullcontext(claim)
    span = spans.begin_message(
        "process",
        delivery.routing_key,
        parent=claim.traceparent,
        began_seconds_ago=time.monotonic() - offered_at,
    )
    return _inside(spans, span, claim)


def running(claim: Claim) -> AbstractContextManager[Claim]:
    """Trace a run; yields the claim with this span as its trace context."""
    spans = tracing.active()
    if spans is None:
        return nullcontext(claim)
    return _inside(spans, spans.begin(f"run {claim.action_ref}", parent=claim.traceparent), claim)


def publishing(claim: Claim) -> AbstractContextManager[object] | None:
    """Trace the publishing of the completion, until the broker has confirmed it; None: traces are off."""
    spans = tracing.active()
    if spans is None:
        return None
    return _until_end(spans.begin_message("send", "execution.completed", parent=claim.traceparent))


def started(claim: Claim) -> None:
    """Note that an attempt starts."""
    WAIT_SECONDS.observe(claim.waited_seconds, METER.action_refs[claim.action_ref])
    if logger.isEnabledFor(logging.INFO):
        logger.info("execution_started", extra=_fields(claim))


def ran(claim: Claim, *, started_at: float) -> None:
    """Note that a run has ended, however it ended; `started_at` is an instant of the monotonic clock."""
    RUN_SECONDS.observe(time.monotonic() - started_at, METER.action_refs[claim.action_ref])


def ended(claim: Claim, status: Status, outcome: Outcome) -> None:
    """Note that the database has stored an attempt's outcome; called within `processing`."""
    ENDED.add(METER.action_refs[claim.action_ref], status)
    if logger.isEnabledFor(logging.INFO):
        logger.info("execution_ended", extra=_fields(claim, status=str(status)) | _failure_fields(outcome))
    spans = tracing.active()
    if spans is not None:
        span = spans.current_span()
        span.set_attribute("turnstile.status", status)
        if status in _FAILURES:
            spans.failed(span, status)


def _failure_fields(outcome: Outcome) -> dict[str, object]:
    """Return what an attempt failed with, and where: what a reader of the log looks for first."""
    failure = failure_of(outcome)
    if failure is None:
        return {}
    fields: dict[str, object] = {
        "error_type": failure.type,
        "error": clipped(failure.message, _ERROR_CHARS_MAX),
    }
    return fields | (
        {"location": outcome.location} if isinstance(outcome, Failed) and outcome.location else {}
    )


def handed_back(claim: Claim) -> None:
    """Note that an attempt was returned to the head of its queue."""
    HANDED_BACK.add()
    if logger.isEnabledFor(logging.INFO):
        logger.info("execution_handed_back", extra=_fields(claim))


def not_applied(write: Write, attempt: Claim | Offer, verdict: Verdict) -> None:
    """Note that the database did not apply a call, because another change came first.

    Logs each at level DEBUG, above it once a minute for each verdict: many offers may be delivered twice.
    """
    NOT_APPLIED.add(write, verdict)
    fields = _fields(attempt, verdict=str(verdict))
    logger.debug("one_write_not_applied", extra={"write": write, **fields})
    _NOT_APPLIED[write].failed(str(verdict), **fields)


def dropped(attempt: Claim | Offer) -> None:
    """Note that an attempt was dropped without a call to the database: the lease is lost."""
    NOT_APPLIED.add("attempt", "dropped")
    logger.debug("one_attempt_dropped", extra=_fields(attempt))
    _DROPPED.failed("attempts", **_fields(attempt))


@contextmanager
def _inside(spans: "Spans", span: "Span", claim: Claim) -> Iterator[Claim]:
    """Yield the claim with `span` as its trace context, then end the span."""
    span.set_attributes(spans.of_execution(claim.action_ref, claim.execution_id, claim.attempt))
    try:
        with spans.current(span):
            yield replace(claim, traceparent=spans.traceparent_of(span))
    finally:
        span.end()


@contextmanager
def _until_end(span: "Span") -> Iterator[None]:
    try:
        yield
    finally:
        span.end()


def _fields(attempt: Claim | Offer, **more: str) -> dict[str, object]:
    fields: dict[str, object] = {"execution_id": attempt.execution_id, "attempt": attempt.attempt}
    if isinstance(attempt, Claim):
        fields["action_ref"] = attempt.action_ref
    return fields | more
