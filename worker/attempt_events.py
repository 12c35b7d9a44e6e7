"""Logs, counts and traces the steps of attempts.

In: a step of one attempt, when it begins or ends. Out: nothing that can fail. One log event per transition:
`execution_started`, `execution_ended`, `execution_returned`. A trace shows an attempt as the processing of
its offer, with the run inside it; spans of the action itself and the requests it makes belong to that run.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from turnstile.common.domain.states import Status
from turnstile.common.telemetry import tracing
from turnstile.common.worker_protocol import AttemptEnded, Offer
from turnstile.worker.logs import clipped
from turnstile.worker.metrics import ENDED, METER, RETURNED, RUN_SECONDS, WAIT_SECONDS

if TYPE_CHECKING:
    from turnstile.common.telemetry.spans import Spans

logger = logging.getLogger(__name__)

_OFFERED: Final = "execution.scheduled"
_FAILURES: Final = frozenset({Status.FAILED, Status.TIMEOUT})
_ERROR_CHARS_MAX: Final = 500


class Traced:
    """The trace of one attempt, from its start to the report of its end, which another thread may make."""

    __slots__ = ("_offer", "_span", "_spans")

    def __init__(self, offer: Offer, spans: "Spans") -> None:
        self._offer, self._spans = offer, spans
        parent = (offer.extra or {}).get("traceparent")
        self._span = spans.begin_message("process", _OFFERED, parent=parent)
        self._span.set_attributes(spans.of_execution(offer.action_ref, offer.execution_id, offer.attempt))

    @contextmanager
    def running(self) -> Iterator[str | None]:
        """Trace the run; yields the trace context that its action sees."""
        spans, offer = self._spans, self._offer
        span = spans.begin(f"run {offer.action_ref}", parent=spans.traceparent_of(self._span))
        span.set_attributes(spans.of_execution(offer.action_ref, offer.execution_id, offer.attempt))
        try:
            with spans.current(span):
                yield spans.traceparent_of(span)
        finally:
            span.end()

    def end(self, status: Status | None) -> None:
        """Note how it ended; None: it was returned."""
        if status is not None:
            self._span.set_attribute("turnstile.status", status)
        if status in _FAILURES:
            self._spans.failed(self._span, status)
        self._span.end()


def traced(offer: Offer) -> Traced | None:
    """Begin the trace of an attempt; None: traces are off."""
    spans = tracing.active()
    return None if spans is None else Traced(offer, spans)


def started(offer: Offer) -> None:
    """Note that an attempt starts."""
    waited_seconds = (offer.extra or {}).get("waited")
    if waited_seconds is not None:
        WAIT_SECONDS.observe(waited_seconds, METER.action_refs[offer.action_ref])
    if logger.isEnabledFor(logging.INFO):
        logger.info("execution_started", extra=_fields(offer))


def ran(offer: Offer, seconds: float) -> None:
    """Note that a run has ended, however it ended."""
    RUN_SECONDS.observe(seconds, METER.action_refs[offer.action_ref])


def ended(offer: Offer, report: AttemptEnded, location: str | None) -> Status:
    """Note that the end of an attempt is about to be reported; return the status that follows from it."""
    status: Status = report.status
    if status is Status.FAILED and report.is_retryable and (offer.extra or {}).get("retries_left", 0) > 0:
        status = Status.DELAYED
    ENDED.add(METER.action_refs[offer.action_ref], status)
    if logger.isEnabledFor(logging.INFO):
        fields = _fields(offer, status=str(status))
        if report.error is not None:
            kind, message = report.error
            fields |= {"error_type": kind, "error": clipped(message, _ERROR_CHARS_MAX)}
            if location is not None:
                fields["location"] = location
        logger.info("execution_ended", extra=fields)
    return status


def returned(offer: Offer) -> None:
    """Note that an attempt is returned to the head of its queue."""
    RETURNED.add()
    if logger.isEnabledFor(logging.INFO):
        logger.info("execution_returned", extra=_fields(offer))


def _fields(offer: Offer, **more: str) -> dict[str, object]:
    return {
        "execution_id": offer.execution_id,
        "attempt": offer.attempt,
        "action_ref": offer.action_ref,
        **more,
    }
