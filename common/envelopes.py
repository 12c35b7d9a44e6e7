"""Addresses and wraps every message that the services send: one function per message type.

In: the fields of the body. Out: an `Outgoing` with its exchange, routing key and properties; `app_id` is the
sender. The bodies of messages that every execution needs (`execution.scheduled`, `execution.status_changed`,
`execution.completed`) are filled into bytes; a test compares them with the models in `common.messages`.
"""

import itertools
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from random import getrandbits
from typing import Final

from pydantic import BaseModel
from pydantic_core import to_json

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import HeaderValue, Outgoing, SharedHeaders
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTION_ACCEPTED,
    EXECUTION_REJECTED,
    EXECUTION_STATUS_CHANGED,
    EXECUTIONS,
)
from turnstile.common.domain.errors import Code
from turnstile.common.messages import (
    SCHEMA_VERSION,
    AppId,
    ExecutionAccepted,
    ExecutionRejected,
    StatusChanged,
)

TRIES_HEADER: Final = "x-tries"
"""How often an early message was delayed and redelivered."""
ERROR_CODE_HEADER: Final = "x-error-code"
ERROR_HEADER: Final = "x-error"
ORIGINAL_KEY_HEADER: Final = "x-original-routing-key"
DIED_AT_HEADER: Final = "x-died-at"
"""Headers of a dead letter: error code, error message, original routing key, and time."""
CUT_HEADERS_HEADER: Final = "x-headers-cut"
"""Number of headers that a forwarded message had, where not all of them were kept."""
_FORWARDED_HEADER_CHARS_MAX: Final = 4096
_FORWARDED_HEADERS_BYTES_MAX: Final = 48 * 1024
_KEPT_PROPERTIES_CHARS_MAX: Final = 4096
_HEADERS: Final = SharedHeaders(schema_version=SCHEMA_VERSION)


def envelope(
    body: bytes | BaseModel,
    *,
    message_type: str,
    exchange: str,
    routing_key: str,
    app_id: AppId,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    traceparent: str | None = None,
    persistent: bool = True,
    mandatory: bool = True,
    direct_address: tuple[str, str] | None = None,
) -> Outgoing:
    """Wrap a body in the properties that all our messages carry."""
    headers: dict[str, HeaderValue] = _HEADERS
    if traceparent is not None:
        headers = {**_HEADERS, "traceparent": traceparent}
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=body if isinstance(body, bytes) else body.model_dump_json().encode(),
        type=message_type,
        message_id=message_id(),
        timestamp=int(time.time()),
        app_id=app_id,
        correlation_id=correlation_id,
        reply_to=reply_to,
        headers=headers,
        persistent=persistent,
        mandatory=mandatory,
        direct_address=direct_address,
    )


class _MessageIds:
    """UUIDs of version 4 that share the random first half of this process; the second half is counted up."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw another first half."""
        first = f"{getrandbits(64) & ~0xF000 | 0x4000:016x}"
        variant_and_node = 0x8000_0000_0000_0000 | getrandbits(62)
        self._start = f"{first[:8]}-{first[8:12]}-{first[12:]}-{variant_and_node >> 48:04x}-"
        self._ends = itertools.count(variant_and_node & 0xFFFF_FFFF_FFFF)

    def next(self) -> str:
        """Return an id that no other message has."""
        return f"{self._start}{next(self._ends) & 0xFFFF_FFFF_FFFF:012x}"


_message_ids: Final = _MessageIds()
# A child process would continue the numbers of its parent.
os.register_at_fork(after_in_child=_message_ids.renew)

message_id: Final = _message_ids.next
"""Return a new UUID: unique but not secret, made without a system call."""


def status_message(changed: StatusChanged, *, app_id: AppId, mandatory: bool) -> Outgoing:
    """Announce a status change to all queues that bind; may be lost.

    `mandatory`: the broker returns it where no queue is bound.
    """
    return envelope(
        _status_body(changed),
        message_type=EXECUTION_STATUS_CHANGED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_STATUS_CHANGED,
        app_id=app_id,
        correlation_id=str(changed.execution_id),
        persistent=False,
        mandatory=mandatory,
    )


def _status_body(changed: StatusChanged) -> bytes:
    previous = changed.previous_status
    return (
        b'{"execution_id":%d,"action_ref":%b,"status":"%b","previous_status":%b,"attempt":%d,"changed_at":%b}'
    ) % (
        changed.execution_id,
        _ref_json(changed.action_ref),
        changed.status.encode(),
        b"null" if previous is None else b'"%b"' % previous.encode(),
        changed.attempt,
        to_json(changed.changed_at),
    )


@lru_cache(maxsize=4096)
def _ref_json(action_ref: str) -> bytes:
    return to_json(action_ref)


def reply(request: Delivery, answer: ExecutionAccepted | ExecutionRejected) -> Outgoing | None:
    """Return the reply to a request, or None where it has no `reply_to`.

    It carries the correlation id of the request, else its message id. Not mandatory: the reply queue may be
    deleted already.
    """
    if not request.reply_to:
        return None
    fallback = str(answer.execution_id) if isinstance(answer, ExecutionAccepted) else None
    return envelope(
        answer,
        message_type=EXECUTION_ACCEPTED if isinstance(answer, ExecutionAccepted) else EXECUTION_REJECTED,
        exchange="",
        routing_key=request.reply_to,
        app_id="executor",
        correlation_id=request.correlation_id or request.message_id or fallback,
        mandatory=False,
    )


def dead_letter(delivery: Delivery, code: Code, message: str, *, app_id: AppId) -> Outgoing:
    """Return the dead letter of a message: its original body and properties, with the reason in headers."""
    reason = {
        ERROR_CODE_HEADER: str(code),
        ERROR_HEADER: message[:1000],
        ORIGINAL_KEY_HEADER: delivery.routing_key,
        DIED_AT_HEADER: datetime.now(UTC).isoformat(),
    }
    return _forwarded(
        delivery,
        exchange=DEAD_LETTER_EXCHANGE,
        routing_key=delivery.routing_key,
        headers=reason,
        app_id=app_id,
    )


def kept_properties(delivery: Delivery) -> str:
    """Return as JSON what the dead letter of a message needs that is acknowledged long before it."""
    fields = {
        "message_id": delivery.message_id,
        "correlation_id": delivery.correlation_id,
        "reply_to": delivery.reply_to,
        "app_id": delivery.app_id,
        "timestamp": delivery.timestamp,
        "headers": _bounded_headers(delivery.headers),
    }
    found = {name: value for name, value in fields.items() if value is not None}
    text = to_json(found).decode()
    if len(text) > _KEPT_PROPERTIES_CHARS_MAX:
        text = to_json({**found, "headers": {CUT_HEADERS_HEADER: len(delivery.headers)}}).decode()
    return text


def tries_of(delivery: Delivery) -> int:
    """Return how often this message came from a delay queue."""
    tries = delivery.headers.get(TRIES_HEADER, 0)
    # A sender may write this header: a negative count would allow tries for years.
    return max(tries, 0) if isinstance(tries, int) else 0


def _forwarded(
    delivery: Delivery,
    *,
    exchange: str,
    routing_key: str,
    headers: Mapping[str, HeaderValue],
    app_id: AppId,
) -> Outgoing:
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=delivery.body,
        type=delivery.type or "",
        message_id=delivery.message_id or message_id(),
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        app_id=delivery.app_id or app_id,
        headers={**_bounded_headers(delivery.headers), **headers},
        timestamp=delivery.timestamp,
        content_type=delivery.content_type or "application/octet-stream",
    )


def _bounded_headers(headers: Mapping[str, object]) -> dict[str, HeaderValue]:
    """Return the plain headers of a received message, cut so that ours fit into the same frame."""
    bounded: dict[str, HeaderValue] = {}
    room_bytes = _FORWARDED_HEADERS_BYTES_MAX
    for name, given in headers.items():
        # Tables that the broker added (x-death) are left out: it would read its own history in them.
        if not isinstance(given, str | int | bool) or name == "x-delivery-count":
            continue
        value = given
        if isinstance(given, str) and len(given) > _FORWARDED_HEADER_CHARS_MAX:
            value = f"{given[:_FORWARDED_HEADER_CHARS_MAX]}... ({len(given)} characters)"
        room_bytes -= len(name.encode()) + len(str(value).encode()) + 8
        if room_bytes < 0:
            bounded[CUT_HEADERS_HEADER] = len(headers)
            return bounded
        bounded[name] = value
    return bounded
