"""Requests: checked and wrapped for the wire, in the trace of the calling code.

In: a `Request`, or which execution to cancel. Out: an `Outgoing` that the executor can read, or `Rejected`
before anything is sent: the same code checks the bytes here and in the executor.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

from turnstile.client.errors import Rejected
from turnstile.client.masked_secrets import masked_secret
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTIONS,
    EXECUTOR_REQUESTS,
)
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.envelopes import envelope
from turnstile.common.messages import CancelRequested
from turnstile.common.nearest import did_you_mean
from turnstile.common.requests import CheckedRequest, read_model, read_requested_body, read_traceparent

_OPENTELEMETRY: Final = "opentelemetry.trace"
_NOT_SENT: Final = ("traceparent", "answer_timeout", "result_type")
"""Fields of `Request` that are not fields of the body."""


R = TypeVar("R")
"""The result of an action."""


class Options(TypedDict, total=False):
    """The keyword arguments of `submit` and `run`; `Request` documents each of them."""

    idempotency_key: str | None
    concurrency_key: str | None
    singleton: str | Mapping[str, str] | None
    priority: int | None
    run_at: datetime | None
    delay: str | float | None
    timeout: str | float | None
    ttl: str | float | None
    callback_url: str | None
    metadata: Mapping[str, object]
    traceparent: str | None
    answer_timeout: str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to run an action once."""

    action_ref: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Passed to the action by name; any values that JSON can represent."""
    idempotency_key: str | None = None
    """Requests with the same key are one execution, from any sender and any number of times."""
    concurrency_key: str | None = None
    """Names the queue; else the action's pointer into the parameters does."""
    singleton: str | Mapping[str, str] | None = None
    """At most one execution of the action with this key at a time: a key, or `key`, `when` and `then`."""
    priority: int | None = None
    """1 (first) to 5 (last). None: 3, or the action's `priority_min` if that is larger."""
    run_at: datetime | None = None
    """Not started before this instant, which must have a time zone."""
    delay: str | float | None = None
    """Not started before this time has passed since the executor admitted it: `5m`, or seconds."""
    timeout: str | float | None = None
    """Longest run of one attempt: `5m`, or seconds."""
    ttl: str | float | None = None
    """Longest wait for a start: `1h`, or seconds."""
    callback_url: str | None = None
    """URL that receives a webhook when the execution finished."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Stored with the execution, never interpreted."""
    traceparent: str | None = None
    """The W3C trace context of the execution; None: that of the calling code, if any."""
    answer_timeout: str | float | None = None
    """Longest wait for the answer to the submit: `3s`, or seconds. None: that of the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest(Request, Generic[R]):
    """A request that was made from the function of an action, so that the type of its result is known."""

    result_type: Any = Any
    """The type of the result, for pydantic."""


def request_of(given: Request | Mapping[str, object], *, path: str) -> Request:
    """Return a request, or make one of its fields. Raises Rejected and TypeError, which name it by `path`."""
    if isinstance(given, Request):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(
            f'{path}: expected a Request, or a mapping like {{"action_ref": "reports.render", "parameters": '
            f"{{}}}}, and not {type(given).__name__}"
        )
    known = [each.name for each in fields(Request)]
    for name in given:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise Rejected(Code.UNKNOWN_FIELD, f"{path}.{name!s:.100}: unknown field{hint}")
    if "action_ref" not in given:
        raise Rejected(Code.INVALID_MESSAGE, f"{path}.action_ref: required, but missing")
    # The values are checked like those of any other request.
    named: Any = given
    return Request(**named)


def request_body(request: Request, *, parameters_bytes_max: int) -> bytes:
    """Return the request as JSON, as messages and the API take it. Raises Rejected."""
    body = json_body(_given_fields(request))
    check_request(request, body, parameters_bytes_max=parameters_bytes_max)
    return body


def request_message(request: Request, *, reply_to: str, parameters_bytes_max: int) -> Outgoing:
    """Wrap a request; its message id makes a repeat harmless (P5). Raises Rejected."""
    body = request_body(request, parameters_bytes_max=parameters_bytes_max)
    message = envelope(
        body,
        message_type=EXECUTION_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        direct_address=(EXECUTOR_REQUESTS, EXECUTION_REQUESTED),
        app_id="client",
        reply_to=reply_to,
        traceparent=request.traceparent or traceparent_here(),
    )
    return replace(message, correlation_id=message.message_id)


def check_request(
    request: Request, body: bytes | None = None, *, parameters_bytes_max: int
) -> CheckedRequest:
    """Return a request as the executor reads it, from its JSON if that is known. Raises Rejected."""
    if request.traceparent is not None and read_traceparent({"traceparent": request.traceparent}) is None:
        raise Rejected(Code.INVALID_MESSAGE, "traceparent: not a W3C trace context; leave it out")
    try:
        return read_requested_body(
            json_body(_given_fields(request)) if body is None else body,
            parameters_bytes_max=parameters_bytes_max,
        )
    except Refusal as refusal:
        raise Rejected(refusal.code, refusal.message) from None


def answer_seconds(requests: Iterable[Request], *, default: float) -> float:
    """Return for how long a client waits for the answers to these requests. Raises Rejected."""
    given = {each.answer_timeout for each in requests}
    try:
        return max((default if each is None else parse_duration(each) for each in given), default=default)
    except ValueError as error:
        raise Rejected(Code.INVALID_MESSAGE, f"answer_timeout: {error}") from None


def cancel_request_message(
    execution_id: int | None, idempotency_key: str | None, reason: str | None
) -> Outgoing:
    """Wrap a cancel request. Raises Rejected."""
    if (execution_id is None) == (idempotency_key is None):
        raise Rejected(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
    named = {"execution_id": execution_id, "idempotency_key": idempotency_key, "reason": reason}
    try:
        cancel = read_model(
            CancelRequested, {name: value for name, value in named.items() if value is not None}
        )
    except Refusal as refusal:
        raise Rejected(refusal.code, refusal.message) from None
    return envelope(
        cancel.model_dump_json(exclude_none=True).encode(),
        message_type=EXECUTION_CANCEL_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_CANCEL_REQUESTED,
        direct_address=(EXECUTOR_REQUESTS, EXECUTION_CANCEL_REQUESTED),
        app_id="client",
        correlation_id=None if execution_id is None else str(execution_id),
    )


def _given_fields(request: Request) -> dict[str, object]:
    named = {each.name: getattr(request, each.name) for each in fields(request) if each.name not in _NOT_SENT}
    return {name: value for name, value in named.items() if value is not None}


def json_body(given: Mapping[str, object]) -> bytes:
    """Return fields of a request, such as `parameters`, as JSON. Raises Rejected."""
    try:
        # NaN stays NaN, so that it is rejected and not silently turned into null.
        body = to_json(given, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise Rejected(Code.INVALID_PARAMETERS, f"parameters: cannot be written as JSON: {error}") from None
    # Only what may be a mask is checked again.
    if b'"****' in body and (problem := masked_secret(given, from_json(body))):
        raise Rejected(Code.INVALID_PARAMETERS, problem)
    return body


def traceparent_here() -> str | None:
    """Create a span for the message under the current one, and return its context; None without a trace.

    OpenTelemetry is never imported here: code that has not imported it has no trace.
    """
    if _OPENTELEMETRY not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415  (imported already by the application)

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
