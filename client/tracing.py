"""Puts a request into the trace of the code that makes it, where that code traces at all.

In: nothing but the running program. Out: a W3C traceparent, or None. OpenTelemetry is never loaded here: who
has not loaded it has no trace. Next: `client.request` sends it along, and the execution's spans follow it.
"""

import sys
from typing import Final

from turnstile.common.broker.topology import EXECUTOR_REQUESTS

_LOADED: Final = "opentelemetry.trace"


def traceparent_here() -> str | None:
    """Begin the message's own span under the current one, and return its context; None without a trace."""
    if _LOADED not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415  (loaded already, by somebody else)

    tracer = trace.get_tracer("turnstile")
    attributes = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": EXECUTOR_REQUESTS,
    }
    span = tracer.start_span(
        f"create {EXECUTOR_REQUESTS}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    )
    span.end()
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
