"""The door for requests by AMQP: what is checked before a turn sees them. Pure.

In: one message of `executor.requests`, and what checks parameters. Out: a request or a cancel as a value, or
a `Refusal` with code and sentence. Checked here is what the message alone decides, and whether parameters
fit their schema, while they are parsed. Whether the action exists, and its queue, key and priority, are
decided in the turn.
"""

from typing import Final

from msgspec import structs

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTOR_REQUESTS,
)
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.messages import CancelRequested
from turnstile.common.requests import (
    check_schema_version,
    read_json,
    read_model,
    read_requested_body,
    read_traceparent,
)
from turnstile.executor.leader.command_rows import RefusalOf, request_of
from turnstile.executor.leader.ports import CancelRequest, Request

_CANCEL_BYTES_MAX: Final = 16 * 1024
_KEYS: Final = frozenset({EXECUTION_REQUESTED, EXECUTION_CANCEL_REQUESTED, EXECUTOR_REQUESTS})


def read_request_message(
    message: Delivery, refusal_of: RefusalOf, *, parameters_bytes_max: int
) -> Request | CancelRequest:
    """Return the request in a message; raises Refusal. Without a type, its routing key decides what it is."""
    check_kept(message)
    check_schema_version(message.headers)
    if message.routing_key not in _KEYS:
        # A sender without the right to use these keys can add them in the header CC to a key that it may use.
        raise Refusal(
            Code.FORBIDDEN,
            f"routing key: {message.routing_key[:60]!r} is not accepted here; publish with "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    kind = message.type or message.routing_key
    if kind == EXECUTION_CANCEL_REQUESTED:
        return _read_cancel(message.body)
    if kind != EXECUTION_REQUESTED:
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"type: {kind[:60]!r} is not accepted here; expected "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    requested = read_requested_body(message.body, parameters_bytes_max=parameters_bytes_max)
    request = request_of(requested, traceparent=read_traceparent(message.headers))
    refusal = refusal_of(requested.action_ref, requested.parameters)
    return request if refusal is None else structs.replace(request, refusal=refusal)


def check_kept(message: Delivery) -> None:
    """Raise Refusal for a message that was too large to be kept in memory."""
    if not message.kept:
        raise Refusal(
            Code.TOO_LARGE, f"message: {message.size_bytes} bytes; send a reference to the data instead"
        )


def _read_cancel(body: bytes) -> CancelRequest:
    cancel = read_model(CancelRequested, read_json(body, bytes_max=_CANCEL_BYTES_MAX))
    if (cancel.execution_id is None) == (cancel.idempotency_key is None):
        raise Refusal(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
    return CancelRequest(
        execution_id=cancel.execution_id,
        idempotency_key=cancel.idempotency_key,
        reason=cancel.reason or "",
    )
