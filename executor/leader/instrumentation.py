"""Records what the turns decided: metrics, log lines at level DEBUG, and spans where tracing is on.

In: what a turn took, and its decisions after their commit. Out: nothing that a turn waits for; these calls do
not fail. One event name per transition: `execution_admitted`, `execution_granted`, `execution_end_committed`.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.telemetry import tracing
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.leader.admission import Source
from turnstile.executor.leader.ports import Request
from turnstile.executor.leader.sessions import COMPLETIONS
from turnstile.executor.metrics import (
    ADMITTED,
    ATTEMPTS_ENDED,
    CANCELS_ENFORCED,
    DUPLICATES,
    GRANT_SECONDS,
    GRANTED,
    HAND_OVER_SECONDS,
    METER,
    OCCURRENCES,
    RECLAIMS,
    REFUSED,
    REPAIRS,
    TURN_INPUTS,
    TURN_SECONDS,
    count_ended,
    expect_outcomes,
)
from turnstile.executor.queue_manager.decisions import Decisions

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turnstile.common.telemetry.spans import Spans
    from turnstile.executor.leader.turns import Leadership, Taken

logger = logging.getLogger(__name__)
_REFUSED: Final = Episodes(logger, "request_refused", level=logging.INFO)
_TRACED_MAX: Final = 10_000
"""Executions whose trace is remembered; of older ones the grant and the end are not traced."""
_LOST: Final = "its worker was lost"


class Ending(NamedTuple):
    """An attempt that ended, or an execution that ended without one."""

    execution_id: int
    action_ref: str
    attempt: int
    status: Status
    """Of the execution, afterwards."""


class TurnRecords:
    """The records of one leader's process."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._committed_began_at = 0.0
        """When the turn began that was committed last: the next one begins before it is published."""
        self._slots_given = 0
        """How many executions it granted with a slot."""
        self._admissions: dict[str | None, Span] = {}
        """Spans of the requests of this turn, by the trace context of each."""
        self._traces: dict[int, str] = {}

    def begin(self) -> None:
        """Note when a turn begins."""
        self._began_at = time.perf_counter()
        self._admissions.clear()

    def traced(self, sources: list[Source]) -> list[Source]:
        """Begin a span for each request; the execution's row names that span as its parent."""
        if (spans := tracing.active()) is None:
            return sources
        return [self._traced(spans, each) if isinstance(each.request, Request) else each for each in sources]

    def _traced(self, spans: "Spans", source: Source) -> Source:
        request = source.request
        assert isinstance(request, Request)
        span = spans.begin(f"admit {request.action_ref}", parent=request.traceparent)
        context = spans.traceparent_of(span)
        self._admissions[context] = span
        return structs.replace(source, request=structs.replace(request, traceparent=context))

    def committed(self, lead: "Leadership", out: Decisions) -> None:
        """Record what a committed turn decided."""
        self._committed_began_at = self._began_at
        self._slots_given = _slots_given(out)
        names = METER.action_refs
        for ref, count in Counter(each.queue.action.ref for each in out.admitted).items():
            ADMITTED.add(names[ref], count=count)
        repeated, refused = lead.admission.take_noted()
        for ref, count in Counter(repeated).items():
            DUPLICATES.add(names[ref], count=count)
        for source, code, message in refused:
            _count_refused(source, code, message)
        for result, count in lead.schedules.take_noted().items():
            OCCURRENCES.add(result, count=count)
        for ref, count in Counter(each.queue.action.ref for each in out.granted).items():
            GRANTED.add(names[ref], count=count)
            expect_outcomes(ref)
        for grant in out.granted:
            if grant.attempt == 1 and (execution := grant.worker.held.get(grant.id)) is not None:
                GRANT_SECONDS.observe(out.now - execution.queued_at, names[grant.queue.action.ref])
        if again := len(lead.sessions.offer_again):
            REPAIRS.add("offer_repeated", count=again)
        endings = list(_endings(lead, out))
        _count_endings(endings, out)
        if logger.isEnabledFor(logging.DEBUG):
            _log(out, endings)
        if (spans := tracing.active()) is not None:
            self._trace(spans, out, endings)

    def ended(self, taken: "Taken", out: Decisions) -> None:
        """Record the duration of a turn, and what it took; its offers are confirmed."""
        seconds = time.perf_counter() - self._committed_began_at
        TURN_SECONDS.observe(seconds)
        sources = Counter(each.queue.removeprefix("executor.") for each in taken.deliveries)
        sources["inbox"] = len(taken.commands)
        for source, count in sources.items():
            TURN_INPUTS.add(source, count=count)
        if self._slots_given and any(each.queue == COMPLETIONS for each in taken.deliveries):
            HAND_OVER_SECONDS.observe(seconds, count=self._slots_given)

    def _trace(self, spans: "Spans", out: Decisions, endings: Sequence[Ending]) -> None:
        seconds = time.perf_counter() - self._began_at
        for each in out.admitted:
            request = each.source.request
            if request.traceparent is not None:
                self._remember(each.id, request.traceparent)
            if (span := self._admissions.pop(request.traceparent, None)) is not None:
                span.set_attributes(spans.of_execution(request.action_ref, each.id))
                span.end()
        for span in self._admissions.values():
            # Repeated or refused: it became no execution.
            span.end()
        for grant in out.granted:
            if (parent := self._traces.get(grant.id)) is not None:
                ref, held = grant.queue.action.ref, grant.worker.held.get(grant.id)
                waited_seconds = 0.0 if held is None else out.now - held.queued_at
                spans.begin(
                    f"grant {ref}", parent=parent, began_seconds_ago=waited_seconds,
                    attributes=spans.of_execution(ref, grant.id, grant.attempt),
                ).end()  # fmt: skip
        for ending in endings:
            if (parent := self._traces.get(ending.execution_id)) is not None:
                ref, id_, attempt = ending.action_ref, ending.execution_id, ending.attempt
                spans.begin(
                    f"end {ref}", parent=parent, attributes=spans.of_execution(ref, id_, attempt)
                ).end()
        for name, ids in (
            ("process executor.requests", [each.id for each in out.admitted]),
            ("send execution.scheduled", [each.id for each in out.granted]),
            ("process executor.completions", [each.execution_id for each in endings]),
        ):
            if ids:
                operation, _, destination = name.partition(" ")
                contexts = [self._traces.get(each) for each in ids]
                spans.batch(operation, destination, contexts, count=len(ids), began_seconds_ago=seconds)
        for finished in out.finished:
            self._traces.pop(finished.id, None)

    def _remember(self, execution_id: int, traceparent: str) -> None:
        self._traces[execution_id] = traceparent
        if len(self._traces) > _TRACED_MAX:
            del self._traces[next(iter(self._traces))]


def _count_refused(source: Source, code: Code, message: str) -> None:
    """Count and log a request that was refused: each at level DEBUG, once a minute for each code at INFO."""
    REFUSED.add(code)
    key = source.delivery_key or source.command_id
    fields = {"code": str(code), "reason": message, "message_key": None if key is None else str(key)}
    logger.debug("one_request_refused", extra=fields)
    _REFUSED.failed(str(code), **fields)


def _slots_given(out: Decisions) -> int:
    """Return how many of what was granted has a slot: what waits in a run or for a worker slot has none."""
    queues, workers = (
        Counter(each.queue for each in out.granted),
        Counter(each.worker for each in out.granted),
    )
    waiting = sum(min(count, queue.surplus) for queue, count in queues.items())
    waiting += sum(min(count, max(each.used - each.concurrency, 0)) for each, count in workers.items())
    return max(len(out.granted) - waiting, 0)


def _endings(lead: "Leadership", out: Decisions) -> "list[Ending]":
    found = [Ending(each.id, each.queue.action.ref, each.attempt, each.status) for each in out.finished]
    for over in out.attempts:
        execution = lead.state.executions.get(over.id)
        if execution is not None:
            # In one turn it may have been granted again.
            status = Status.DELAYED if execution.status is Status.DELAYED else Status.QUEUED
            found.append(Ending(over.id, execution.queue.action.ref, over.attempt, status))
    return found


def _count_endings(endings: Sequence[Ending], out: Decisions) -> None:
    for status, count in Counter(each.status for each in endings).items():
        ATTEMPTS_ENDED.add(status, count=count)
    ended = Counter((each.queue.action.ref, each.status) for each in out.finished)
    for (ref, status), count in ended.items():
        count_ended(ref, status, count)
    if reclaimed := sum(each.outcome == "reclaimed" for each in out.attempts):
        RECLAIMS.add(Status.QUEUED, count=reclaimed)
    enforced = {each.execution_id for each in out.asked if each.reason != _LOST}
    for finished in out.finished:
        if finished.report is not None:
            continue
        if finished.status is Status.ABANDONED:
            RECLAIMS.add(Status.ABANDONED)
        elif finished.id in enforced and finished.status in (Status.TIMEOUT, Status.CANCELLED):
            CANCELS_ENFORCED.add(finished.status)


def _log(out: Decisions, endings: Sequence[Ending]) -> None:
    for admitted in out.admitted:
        status = Status.QUEUED if admitted.due_at is None else Status.DELAYED
        fields = {"execution_id": admitted.id, "status": str(status)}
        logger.debug("execution_admitted", extra={**fields, "action_ref": admitted.queue.action.ref})
    for grant in out.granted:
        fields = {"execution_id": grant.id, "attempt": grant.attempt}
        logger.debug("execution_granted", extra={**fields, "action_ref": grant.queue.action.ref})
    for ending in endings:
        fields = {"execution_id": ending.execution_id, "attempt": ending.attempt, "status": ending.status}
        logger.debug("execution_end_committed", extra={**fields, "action_ref": ending.action_ref})
