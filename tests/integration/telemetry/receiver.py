"""An OTLP receiver that keeps the received spans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_server import answering


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    linked_trace_ids: frozenset[str]
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """The received spans of all processes."""

    endpoint: str
    spans: list[Received]

    def of_trace(self, trace_id: str) -> list[Received]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive on a free port of this machine."""
    spans: list[Received] = []

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        assert path == "/v1/traces"
        spans.extend(_spans_in(body))
        return 200, b""

    with answering(answer) as url:
        yield Receiver(endpoint=url, spans=spans)


def _spans_in(body: bytes) -> Iterator[Received]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        known = {each.key: each.value.string_value for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    service=known["service.name"],
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes={
                        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
                        for each in span.attributes
                    },
                    linked_trace_ids=frozenset(link.trace_id.hex() for link in span.links),
                    failed=span.status.code == 2,
                )
