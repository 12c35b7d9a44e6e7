"""The dead letter of a message that the leader refuses: the message as it came, with the reason in headers.

In: a delivery, or the properties that were kept of one. Out: an `Outgoing` to the exchange of dead letters.
Headers of the sender are bounded, so that ours fit into the same frame.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic_core import to_json

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import HeaderValue, Outgoing
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import message_id

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


def dead_letter(delivery: Delivery, code: Code, message: str) -> Outgoing:
    """Return the dead letter of a message: its original body and properties, with the reason in headers."""
    return Outgoing(
        exchange=DEAD_LETTER_EXCHANGE,
        routing_key=delivery.routing_key,
        body=delivery.body,
        type=delivery.type or "",
        message_id=delivery.message_id or message_id(),
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        app_id=delivery.app_id or "executor",
        headers={**_bounded_headers(delivery.headers), **reason_headers(code, message, delivery.routing_key)},
        timestamp=delivery.timestamp,
        content_type=delivery.content_type or "application/octet-stream",
    )


def reason_headers(code: Code, message: str, original_key: str) -> dict[str, HeaderValue]:
    """Return the headers that say why and when a message became a dead letter, and its routing key."""
    return {
        ERROR_CODE_HEADER: str(code),
        ERROR_HEADER: message[:1000],
        ORIGINAL_KEY_HEADER: original_key,
        DIED_AT_HEADER: datetime.now(UTC).isoformat(),
    }


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
