"""Records what the executor decided: metrics, log lines at level DEBUG, and spans where tracing is on.

In: the results of a statement, after its commit. Nothing waits for these functions, and they do not fail.
One event name per transition: `execution_admitted`, `execution_granted`, `execution_settled`.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.errors import Code
from turnstile.common.requests import read_traceparent
from turnstile.common.telemetry import tracing
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.metrics import (
    ADMITTED,
    DUPLICATES,
    GRANT_SECONDS,
    GRANTED,
    METER,
    REFUSED,
    SETTLED,
    count_ended,
    expect_outcomes,
)
from turnstile.executor.results import Accepted, Admission, Completion, Grant, Verdict

if TYPE_CHECKING:
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)
_REFUSED: Final = Episodes(logger, "request_refused", level=logging.INFO)


def batch_span(queue: str, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
    """Trace the processing of a batch."""
    if (spans := tracing.active()) is None:
        return nullcontext()
    contexts = [read_traceparent(delivery.headers) for delivery in deliveries]
    return spans.during_batch("process", queue, contexts, count=len(deliveries))


def dispatch_span(grants: Sequence[Grant]) -> AbstractContextManager[None]:
    """Trace the offers of granted executions, until they are confirmed."""
    if (spans := tracing.active()) is None:
        return nullcontext()
    contexts = [grant.traceparent for grant in grants]
    return spans.during_batch("send", "execution.scheduled", contexts, count=len(grants))


def begin_admissions(admissions: Sequence[Admission]) -> tuple[Sequence[Admission], "list[Span]"]:
    """Begin a span for each admission; the execution's row names that span as its parent."""
    spans = tracing.active()
    if spans is None:
        return admissions, []
    begun = [spans.begin(f"admit {each.action_ref}", parent=each.traceparent) for each in admissions]
    traced = [
        each._replace(traceparent=spans.traceparent_of(span))
        for each, span in zip(admissions, begun, strict=True)
    ]
    return traced, begun


def refused(code: Code, message: str, message_id: str | None) -> None:
    """Count and log a request that was refused: each at level DEBUG, once a minute for each code at INFO."""
    REFUSED.add(code)
    fields = {"code": str(code), "reason": message, "message_id": message_id}
    logger.debug("one_request_refused", extra=fields)
    _REFUSED.failed(str(code), **fields)


def admitted(admissions: Sequence[Admission], verdicts: Sequence[Verdict], begun: "Sequence[Span]") -> None:
    """Record the verdicts on requests, and end their spans."""
    accepted = Counter(
        [
            (admission.action_ref, verdict.duplicate)
            for admission, verdict in zip(admissions, verdicts, strict=True)
            if isinstance(verdict, Accepted)
        ]
    )
    names = METER.action_refs
    for (ref, duplicate), count in accepted.items():
        (DUPLICATES if duplicate else ADMITTED).add(names[ref], count=count)
    if logger.isEnabledFor(logging.DEBUG):
        for admission, verdict in zip(admissions, verdicts, strict=True):
            if isinstance(verdict, Accepted) and not verdict.duplicate:
                fields = {"execution_id": verdict.execution_id, "status": str(verdict.status)}
                logger.debug("execution_admitted", extra={**fields, "action_ref": admission.action_ref})
    spans = tracing.active()
    if spans is not None:
        for admission, verdict, span in zip(admissions, verdicts, begun, strict=False):
            if isinstance(verdict, Accepted):
                span.set_attributes(spans.of_execution(admission.action_ref, verdict.execution_id))
                span.set_attribute("turnstile.duplicate", verdict.duplicate)
            else:
                spans.failed(span, str(verdict.code))
            span.end()


def granted(grants: Sequence[Grant]) -> None:
    """Record granted slots."""
    names = METER.action_refs
    for ref, count in Counter([grant.action_ref for grant in grants]).items():
        GRANTED.add(names[ref], count=count)
        expect_outcomes(ref)
    for grant in grants:
        if grant.waited_seconds is not None:
            GRANT_SECONDS.observe(grant.waited_seconds, names[grant.action_ref])
    if logger.isEnabledFor(logging.DEBUG):
        for grant in grants:
            fields = {"execution_id": grant.execution_id, "attempt": grant.attempt}
            logger.debug("execution_granted", extra={**fields, "action_ref": grant.action_ref})
    spans = tracing.active()
    if spans is not None:
        for grant in grants:
            # The span lasts as long as the execution was queued.
            spans.begin(
                f"grant {grant.action_ref}",
                parent=grant.traceparent,
                attributes=spans.of_execution(grant.action_ref, grant.execution_id, grant.attempt),
                began_seconds_ago=grant.waited_seconds or 0.0,
            ).end()


def settled(completions: Sequence[Completion]) -> None:
    """Record settled attempts, and outcomes of executions that held no slot."""
    for status, count in Counter([each.status for each in completions]).items():
        SETTLED.add(status, count=count)
    # By id: a batch may contain copies of one message.
    ended = {each.execution_id: (each.action_ref, each.status) for each in completions if each.is_end}
    for (ref, status), count in Counter(ended.values()).items():
        count_ended(ref, status, count)
    if logger.isEnabledFor(logging.DEBUG):
        for each in completions:
            fields = {"execution_id": each.execution_id, "attempt": each.attempt, "status": each.status}
            logger.debug("execution_settled", extra={**fields, "action_ref": each.action_ref})
    spans = tracing.active()
    if spans is not None:
        for each in completions:
            spans.begin(
                f"settle {each.action_ref}",
                parent=read_traceparent(each.delivery.headers),
                attributes=spans.of_execution(each.action_ref, each.execution_id, each.attempt),
            ).end()
