"""Says what happened: to the figures, to the log at level DEBUG, and to the traces where they are on.

In: what a statement decided, after its commit. Out: nothing that anybody waits for, and nothing that can
fail. One event name per transition: `execution_admitted`, `execution_granted`, `execution_settled`. Next:
`executor.metrics`, `common.telemetry.spans`.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.requests import read_traceparent
from turnstile.common.telemetry import tracing
from turnstile.executor.decisions import Accepted, Admission, Grant, Verdict
from turnstile.executor.metrics import ADMITTED, DUPLICATES, GRANT_SECONDS, GRANTED, METER, SETTLED

if TYPE_CHECKING:
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One attempt that a completion told the end of."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    status: Status
    tells_end: bool
    """`execution.completed` says so; a slot message tells only that the attempt gave up its slot."""
    delivery: Delivery


@contextmanager
def batch_from(queue: str, deliveries: Sequence[Delivery]) -> Iterator[None]:
    """Trace the decision over a batch."""
    spans = tracing.active()
    if spans is None:
        yield
        return
    contexts = [read_traceparent(delivery.headers) for delivery in deliveries]
    with spans.during_batch("process", queue, contexts, count=len(deliveries)):
        yield


@contextmanager
def offering(grants: Sequence[Grant]) -> Iterator[None]:
    """Trace the offers of what was granted, until they are confirmed."""
    spans = tracing.active()
    if spans is None:
        yield
        return
    contexts = [grant.traceparent for grant in grants]
    with spans.during_batch("send", "execution.scheduled", contexts, count=len(grants)):
        yield


def admitting(admissions: Sequence[Admission]) -> tuple[Sequence[Admission], "list[Span]"]:
    """Begin the spans of admissions; from then on each execution's row names its span as its parent."""
    spans = tracing.active()
    if spans is None:
        return admissions, []
    begun = [spans.begin(f"admit {each.action_ref}", parent=each.traceparent) for each in admissions]
    traced = [
        replace(each, traceparent=spans.traceparent_of(span))
        for each, span in zip(admissions, begun, strict=True)
    ]
    return traced, begun


def admitted(admissions: Sequence[Admission], verdicts: Sequence[Verdict], begun: "Sequence[Span]") -> None:
    """Note what became of requests."""
    names = METER.action_refs
    for admission, verdict in zip(admissions, verdicts, strict=True):
        if isinstance(verdict, Accepted):
            counter = DUPLICATES if verdict.duplicate else ADMITTED
            counter.add(names[admission.action_ref])
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
    """Note slots that a statement gave."""
    names = METER.action_refs
    for ref, count in Counter(grant.action_ref for grant in grants).items():
        GRANTED.add(names[ref], count=count)
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
            # It lasts as long as the execution stood in line.
            spans.begin(
                f"grant {grant.action_ref}",
                parent=grant.traceparent,
                attributes=spans.of_execution(grant.action_ref, grant.execution_id, grant.attempt),
                began_seconds_ago=grant.waited_seconds or 0.0,
            ).end()


def settled(ended: Iterable[Ended]) -> None:
    """Note attempts whose slot was freed, and ends that held none."""
    spans, debugging = tracing.active(), logger.isEnabledFor(logging.DEBUG)
    for end in ended:
        SETTLED.add(end.status)
        if debugging:
            fields = {"execution_id": end.execution_id, "attempt": end.attempt, "status": end.status}
            logger.debug("execution_settled", extra={**fields, "action_ref": end.action_ref})
        if spans is not None:
            spans.begin(
                f"settle {end.action_ref}",
                parent=read_traceparent(end.delivery.headers),
                attributes=spans.of_execution(end.action_ref, end.execution_id, end.attempt),
            ).end()
