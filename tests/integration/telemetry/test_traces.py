"""One trace from the client's call to the end that the leader decides, over three processes."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.telemetry.conftest import Observed
from tests.integration.telemetry.receiver import Received
from tests.support.traffic import until
from turnstile.client import ExecutionFailed
from turnstile.client.requests import traceparent_here

pytestmark = pytest.mark.asyncio(loop_scope="package")

CONSUMER = 5


@pytest.fixture
def own_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Trace this process, as a user's application would."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


async def test_one_trace_leads_from_the_clients_call_to_the_committed_end(
    observed: Observed, own_spans: InMemorySpanExporter
) -> None:
    with trace.get_tracer("a user's").start_as_current_span("order"):
        assert await observed.client.run("noop", {"number": 7}) == 7
    create, order = own_spans.get_finished_spans()
    assert create.name == "create executor.requests"
    trace_id = f"{order.context.trace_id:032x}"
    # Each process sends its spans in its own time.
    await until(lambda: len(observed.receiver.of_trace(trace_id)) == 5)
    spans = {span.name: span for span in observed.receiver.of_trace(trace_id)}
    parents = {span.span_id: span.name for span in spans.values()} | {
        f"{create.context.span_id:016x}": create.name
    }
    assert {(span.service, name, parents[span.parent_id]) for name, span in spans.items()} == {
        ("turnstile-executor", "admit noop", "create executor.requests"),
        ("turnstile-executor", "grant noop", "admit noop"),
        ("turnstile-worker", "process execution.scheduled", "admit noop"),
        ("turnstile-worker", "run noop", "process execution.scheduled"),
        ("turnstile-executor", "end noop", "admit noop"),
    }
    process = spans["process execution.scheduled"]
    assert process.kind == CONSUMER
    assert process.attributes["messaging.system"] == "rabbitmq"
    assert process.attributes["messaging.operation.type"] == "process"
    assert process.attributes["turnstile.status"] == "completed"
    assert process.attributes["turnstile.attempt"] == 1
    await until(lambda: len(_batches(observed, trace_id)) == 3)
    assert {span.name for span in _batches(observed, trace_id)} == {
        "process executor.requests",
        "send execution.scheduled",
        "process executor.completions",
    }


async def test_a_request_without_a_trace_begins_one_and_a_failure_marks_its_span(observed: Observed) -> None:
    with pytest.raises(ExecutionFailed) as failed:
        await observed.client.run("scripted", {"steps": ["PERMANENT"]})
    execution_id = failed.value.execution_id

    def of_execution() -> dict[str, Received]:
        spans = list(observed.receiver.spans)
        return {s.name: s for s in spans if s.attributes.get("turnstile.execution_id") == execution_id}

    await until(lambda: {"end scripted", "process execution.scheduled"} <= of_execution().keys())
    spans = of_execution()
    assert len({span.trace_id for span in spans.values()}) == 1
    assert spans["admit scripted"].parent_id == ""
    assert [name for name, span in spans.items() if span.failed] == ["process execution.scheduled"]
    assert spans["process execution.scheduled"].attributes["error.type"] == "failed"


async def test_a_client_that_does_not_trace_loads_nothing_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert traceparent_here() is None
    assert "opentelemetry.trace" not in sys.modules


def _batches(observed: Observed, trace_id: str) -> list[Received]:
    return [span for span in list(observed.receiver.spans) if trace_id in span.linked_trace_ids]
