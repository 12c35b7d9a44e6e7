"""Spans, named and described by the semantic conventions for messaging; loaded only where traces are on.

In: a name, and the trace context that came with a message or a row. Out: a span, and the context to pass on.
Each step of an execution is a child of the step before, so that a trace reads from submit to completion; a
batch is a span with a link to each execution in it.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, ProxyTracerProvider, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from turnstile.common.version import installed_version

Attributes: TypeAlias = Mapping[str, str | int | float | bool]

LINKS_MAX: Final = 100
"""Maximum links of one batch, below the number that a span keeps by default."""
_KINDS: Final = {
    "create": SpanKind.PRODUCER,
    "send": SpanKind.PRODUCER,
    "process": SpanKind.CONSUMER,
}
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()
_TRACES_PATH: Final = "/v1/traces"


class Spans:
    """Begins spans under one tracer."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("turnstile", installed_version())

    def begin(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: str | None = None,
        attributes: Attributes | None = None,
        links: Iterable[str | None] = (),
        began_seconds_ago: float = 0.0,
    ) -> Span:
        """Begin a span under `parent`, a W3C traceparent; None: the root of a new trace."""
        return self._tracer.start_span(
            name,
            context=_context_of(parent),
            kind=kind,
            attributes=attributes,
            links=_links(links),
            start_time=time.time_ns() - int(max(began_seconds_ago, 0.0) * 1e9),
        )

    def begin_message(
        self, operation: str, destination: str, *, parent: str | None, began_seconds_ago: float = 0.0
    ) -> Span:
        """Begin the span of one operation on one message."""
        return self.begin(
            f"{operation} {destination}",
            kind=_KINDS[operation],
            parent=parent,
            attributes=_messaging(operation, destination),
            began_seconds_ago=began_seconds_ago,
        )

    def batch(
        self,
        operation: str,
        destination: str,
        contexts: Sequence[str | None],
        *,
        count: int,
        began_seconds_ago: float,
    ) -> None:
        """Record an operation that has just ended, on a batch of messages, with links to their traces."""
        self.begin(
            f"{operation} {destination}",
            kind=_KINDS[operation],
            attributes={**_messaging(operation, destination), "messaging.batch.message_count": count},
            links=contexts,
            began_seconds_ago=began_seconds_ago,
        ).end()

    @staticmethod
    def of_execution(action_ref: str, execution_id: int, attempt: int | None = None) -> Attributes:
        """Return the attributes that identify an execution in every span."""
        known: dict[str, str | int] = {
            "turnstile.action_ref": action_ref,
            "turnstile.execution_id": execution_id,
            "messaging.message.conversation_id": str(execution_id),
        }
        return known if attempt is None else known | {"turnstile.attempt": attempt}

    @staticmethod
    def traceparent_of(span: Span) -> str | None:
        """Return the trace context to pass on, in the format of W3C Trace Context."""
        context = span.get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    @staticmethod
    def failed(span: Span, kind: str) -> None:
        """Mark a span as failed, without the error message, which may hold secrets."""
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR))

    @staticmethod
    def current(span: Span) -> AbstractContextManager[Span]:
        """Make it the current span of user code; the caller ends it."""
        return trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def _messaging(operation: str, destination: str) -> dict[str, str | int | float | bool]:
    """Return the attributes that the conventions require of every operation on messages."""
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


def exporting_spans(*, service: str, endpoint: str | None) -> Spans:
    """Return spans that are exported over OTLP, in batches, from a background thread.

    Sampling, batching, headers and further resource attributes follow the standard `OTEL_...` variables. The
    provider becomes the global one, so that actions may create their own spans.
    """
    known = trace.get_tracer_provider()
    if not isinstance(known, ProxyTracerProvider):
        return Spans(known)
    # Several installations are distinguished by the standard variable.
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(
        resource=Resource.create({"service.name": name, "service.version": installed_version()})
    )
    exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint)) if endpoint else OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return Spans(provider)


def _traces_url(endpoint: str) -> str:
    plain = endpoint.rstrip("/")
    return plain if plain.endswith(_TRACES_PATH) else plain + _TRACES_PATH


def _context_of(traceparent: str | None) -> Context:
    """Return the context of a remote parent; an empty one where there is no valid parent."""
    return _TRACE_CONTEXT.extract({"traceparent": traceparent} if traceparent else {}, Context())


def _links(traceparents: Iterable[str | None]) -> list[Link]:
    links: list[Link] = []
    for traceparent in traceparents:
        context = trace.get_current_span(_context_of(traceparent)).get_span_context()
        if context.is_valid:
            links.append(Link(context))
            if len(links) == LINKS_MAX:
                break
    return links
