"""Says what happened to an attempt: to the log, to the figures, and to the traces where they are on.

In: a step of one attempt, at its beginning and its end. Out: nothing that can fail. One event name per
transition: `execution_started`, `execution_ended`, `execution_handed_back`. A trace shows an attempt as the
processing of its offer, with the run inside it: what the action itself traces, and the requests it makes,
belong to that run. Next: `worker.metrics`, `common.telemetry.spans`.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.states import Status
from turnstile.common.telemetry import tracing
from turnstile.worker.attempt_values import log_fields
from turnstile.worker.metrics import ENDED, HANDED_BACK, METER, NOT_APPLIED, RUN_SECONDS, WAIT_SECONDS
from turnstile.worker.record import Claim, Offer, Verdict

if TYPE_CHECKING:
    from turnstile.common.telemetry.spans import Spans

logger = logging.getLogger(__name__)

Write: TypeAlias = Literal["claim", "finish", "hand_back"]

_NOT_APPLIED_EVENTS: Final[Mapping[Write, str]] = {
    "claim": "claim_not_applied",
    "finish": "finish_not_applied",
    "hand_back": "hand_back_not_applied",
}
_BAD_ENDS: Final = frozenset({Status.FAILED, Status.TIMEOUT})


def processing(claim: Claim, delivery: Delivery, *, offered_at: float) -> AbstractContextManager[Claim]:
    """Trace what is made of an offer; yields the claim, whose trace context is then this step's."""
    spans = tracing.active()
    return nullcontext(claim) if spans is None else _processing(spans, claim, delivery, offered_at)


@contextmanager
def _processing(spans: "Spans", claim: Claim, delivery: Delivery, offered_at: float) -> Iterator[Claim]:
    span = spans.begin_message(
        "process",
        delivery.routing_key,
        parent=claim.traceparent,
        began_seconds_ago=time.monotonic() - offered_at,
    )
    span.set_attributes(spans.of_execution(claim.action_ref, claim.execution_id, claim.attempt))
    try:
        with spans.current(span):
            yield replace(claim, traceparent=spans.traceparent_of(span))
    finally:
        span.end()


@contextmanager
def running(claim: Claim) -> Iterator[Claim]:
    """Measure and trace a run; yields the claim, whose trace context is then the run's."""
    spans, started_at = tracing.active(), time.monotonic()
    try:
        if spans is None:
            yield claim
            return
        span = spans.begin(f"run {claim.action_ref}", parent=claim.traceparent)
        span.set_attributes(spans.of_execution(claim.action_ref, claim.execution_id, claim.attempt))
        try:
            with spans.current(span):
                yield replace(claim, traceparent=spans.traceparent_of(span))
        finally:
            span.end()
    finally:
        RUN_SECONDS.observe(time.monotonic() - started_at, METER.action_refs[claim.action_ref])


def telling(claim: Claim) -> AbstractContextManager[None]:
    """Trace that the end is told, until the broker has confirmed it."""
    spans = tracing.active()
    return nullcontext() if spans is None else _telling(spans, claim)


@contextmanager
def _telling(spans: "Spans", claim: Claim) -> Iterator[None]:
    span = spans.begin_message("send", "execution.completed", parent=claim.traceparent)
    try:
        yield
    finally:
        span.end()


def started(claim: Claim) -> None:
    """Note that an attempt begins."""
    WAIT_SECONDS.observe(claim.waited_seconds, METER.action_refs[claim.action_ref])
    logger.info("execution_started", extra=log_fields(claim))


def ended(claim: Claim, status: Status) -> None:
    """Note that an attempt's end is in the record; called where it is processed."""
    ENDED.add(METER.action_refs[claim.action_ref], status)
    logger.info("execution_ended", extra={**log_fields(claim), "status": str(status)})
    spans = tracing.active()
    if spans is not None:
        span = spans.current_span()
        span.set_attribute("turnstile.status", status)
        if status in _BAD_ENDS:
            spans.failed(span, status)


def handed_back(claim: Claim) -> None:
    """Note that an attempt is back at the head of its line."""
    HANDED_BACK.add()
    logger.info("execution_handed_back", extra=log_fields(claim))


def not_applied(write: Write, attempt: Claim | Offer, verdict: Verdict) -> None:
    """Note that the record did not do what was asked, because something came first."""
    NOT_APPLIED.add(write, verdict)
    logger.info(_NOT_APPLIED_EVENTS[write], extra={**log_fields(attempt), "verdict": str(verdict)})


def dropped(attempt: Claim | Offer) -> None:
    """Note that an attempt was given up without a word to the record: the lease is lost."""
    NOT_APPLIED.add("attempt", "dropped")
    logger.info("attempt_dropped", extra=log_fields(attempt))
