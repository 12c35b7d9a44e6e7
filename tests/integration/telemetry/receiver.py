"""An OTLP receiver that keeps the received spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    seconds: float
    attributes: dict[str, Any]
    linked_trace_ids: frozenset[str]
    failed: bool


@dataclass(slots=True, kw_only=True)
class Receiver:
    """The received spans of all processes."""

    endpoint: str
    spans: list[Received] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[Received]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            receiver.spans.extend(_spans_in(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(endpoint=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    attributes={
                        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
                        for each in span.attributes
                    },
                    linked_trace_ids=frozenset(link.trace_id.hex() for link in span.links),
                    failed=span.status.code == 2,
                )
