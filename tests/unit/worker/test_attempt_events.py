"""What is traced, counted and logged of an attempt."""

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.telemetry.spans import Spans
from turnstile.common.worker_protocol import AttemptEnded, Offer
from turnstile.worker import attempt_events
from turnstile.worker.attempt_events import Traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def offer(**extra: object) -> Offer:
    return Offer(
        execution_id=5, grant=Grant(1, 5), attempt=2, action_ref="a.b", parameters=b"{}", extra=extra
    )


def failed(*, is_retryable: bool) -> AttemptEnded:
    return AttemptEnded(
        execution_id=5, grant=Grant(1, 5), status=Status.FAILED, error=("E", "why"), is_retryable=is_retryable
    )


def test_a_run_is_traced_inside_the_processing_of_its_offer() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = Traced(offer(traceparent=PARENT), Spans(provider))
    with traced.running() as traceparent:
        pass
    traced.end(Status.FAILED)
    run, process = exporter.get_finished_spans()
    assert (run.name, process.name) == ("run a.b", "process execution.scheduled")
    assert process.context is not None
    assert process.parent is not None
    assert run.parent is not None
    assert run.parent.span_id == process.context.span_id
    assert f"{process.parent.span_id:016x}" == PARENT.split("-")[2]
    assert run.context is not None
    assert traceparent == f"00-{run.context.trace_id:032x}-{run.context.span_id:016x}-01"
    attributes = process.attributes
    assert attributes is not None
    assert (attributes["turnstile.status"], attributes["error.type"]) == ("failed", "failed")
    assert attributes["turnstile.execution_id"] == 5


@pytest.mark.parametrize(
    ("retries_left", "is_retryable", "status"),
    [(1, True, Status.DELAYED), (0, True, Status.FAILED), (1, False, Status.FAILED)],
)
def test_a_failure_that_will_be_retried_is_counted_as_delayed(
    caplog: pytest.LogCaptureFixture, retries_left: int, is_retryable: bool, status: Status
) -> None:
    caplog.set_level(logging.INFO)
    report = failed(is_retryable=is_retryable)
    assert attempt_events.ended(offer(retries_left=retries_left), report, "a.py:1 in f") is status
    (record,) = caplog.records
    fields = vars(record)
    assert (record.getMessage(), fields["status"]) == ("execution_ended", str(status))
    assert (fields["error_type"], fields["error"], fields["location"]) == ("E", "why", "a.py:1 in f")
