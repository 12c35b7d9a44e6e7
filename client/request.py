"""What is asked for, as values, checked and wrapped for the wire.

In: a `Request`, or whom to cancel. Out: an `Outgoing` that the executor can read, or `Rejected` before
anything is sent: the bytes that leave are read here by the very code that reads them there. Next: `outbox`
sends them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TypedDict

from pydantic_core import PydanticSerializationError, to_json

from turnstile.client.errors import Rejected, rejected
from turnstile.client.tracing import traceparent_here
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTIONS,
    EXECUTOR_REQUESTS,
)
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.envelopes import envelope
from turnstile.common.messages import CANCEL_REQUESTED, REQUESTED, CancelRequested
from turnstile.common.requests import read_model, read_requested_body, read_traceparent


class Options(TypedDict, total=False):
    """What `submit` and `run` take by name; each field is explained at `Request`."""

    idempotency_key: str | None
    concurrency_key: str | None
    run_at: datetime | None
    timeout: str | float | None
    ttl: str | float | None
    callback_url: str | None
    metadata: Mapping[str, object]
    traceparent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run of an action, asked for."""

    action_ref: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Passed to the action by name; anything that can be written as JSON."""
    idempotency_key: str | None = None
    """The same key is the same execution, whoever sends it and however often."""
    concurrency_key: str | None = None
    """Names the queue; else the action's pointer into the parameters does."""
    run_at: datetime | None = None
    """Not before this instant, which must name its time zone."""
    timeout: str | float | None = None
    """Longest run of one attempt: `5m`, or seconds."""
    ttl: str | float | None = None
    """Longest wait for a start: `1h`, or seconds."""
    callback_url: str | None = None
    """Where the end is POSTed to."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Kept beside the execution, never read."""
    traceparent: str | None = None
    """The W3C trace context that the execution belongs to; None: that of the code that asks, if any."""


def request_message(request: Request, *, reply_to: str, parameters_bytes_max: int) -> Outgoing:
    """Wrap a request; its message id is what makes a repeat of it harmless (P5). Raises Rejected."""
    body = _json(_asked(request))
    try:
        read_requested_body(body, parameters_bytes_max=parameters_bytes_max)
    except Refusal as refusal:
        raise rejected(refusal) from None
    if request.traceparent is not None and read_traceparent({"traceparent": request.traceparent}) is None:
        raise Rejected(Code.INVALID_MESSAGE, "traceparent: not a W3C trace context; leave it out")
    message = envelope(
        body,
        message_type=REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        door=(EXECUTOR_REQUESTS, EXECUTION_REQUESTED),
        app_id="client",
        reply_to=reply_to,
        traceparent=request.traceparent or traceparent_here(),
    )
    return replace(message, correlation_id=message.message_id)


def cancel_request_message(
    execution_id: int | None, idempotency_key: str | None, reason: str | None
) -> Outgoing:
    """Wrap a request to stop. Raises Rejected."""
    if (execution_id is None) == (idempotency_key is None):
        raise Rejected(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
    named = {"execution_id": execution_id, "idempotency_key": idempotency_key, "reason": reason}
    try:
        cancel = read_model(
            CancelRequested, {name: value for name, value in named.items() if value is not None}
        )
    except Refusal as refusal:
        raise rejected(refusal) from None
    return envelope(
        cancel.model_dump_json(exclude_none=True).encode(),
        message_type=CANCEL_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_CANCEL_REQUESTED,
        door=(EXECUTOR_REQUESTS, EXECUTION_CANCEL_REQUESTED),
        app_id="client",
        correlation_id=None if execution_id is None else str(execution_id),
    )


def _asked(request: Request) -> dict[str, object]:
    named = {each.name: getattr(request, each.name) for each in fields(request) if each.name != "traceparent"}
    return {name: value for name, value in named.items() if value is not None}


def _json(asked: Mapping[str, object]) -> bytes:
    try:
        # NaN stays NaN, so that it is refused and not silently turned into null.
        return to_json(asked, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise Rejected(Code.INVALID_PARAMETERS, f"parameters: cannot be written as JSON: {error}") from None
