"""Translates between a delivery of the dead-letter queue, its row, and the message of a replay. Pure.

Our services put the reason into headers (`envelope.dead_letter`); the broker puts it into the
header `x-death`. Senders choose the rest, so every field is bounded here and made storable: PostgreSQL
stores neither NUL in text nor NaN in JSON.
"""

import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from pydantic import JsonValue

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import HeaderValue, Outgoing
from turnstile.common.broker.topology import (
    EXECUTIONS,
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
)
from turnstile.executor.dead_letters.envelope import (
    DIED_AT_HEADER,
    ERROR_CODE_HEADER,
    ERROR_HEADER,
    ORIGINAL_KEY_HEADER,
)

UNEXPLAINED: Final = "unexplained"
"""The code of a message that was published to the dead letters without a reason."""
CUT_BODY_BYTES: Final = 64 * 1024
"""Stored bytes of a body that is larger than any acceptable message."""
HEADERS_BYTES_MAX: Final = 64 * 1024
"""Largest headers, as JSON."""
HEADER_BYTES_MAX: Final = 8 * 1024
"""Largest value of one header, as JSON; larger ones are cut."""
_CODE_CHARS_MAX: Final = 100
_ERROR_CHARS_MAX: Final = 1000
_CUT_HEADER_CHARS: Final = 1000
_HEADER_DEPTH_MAX: Final = 6
_ROW_BYTES: Final = 512
"""Approximate size of a row without headers, error and body."""
_DEATH_HEADER: Final = re.compile(
    r"x-(error.*|tries|died-at|original-routing-key|death|delivery-count|acquired-count|(first|last)-death-.*)"
)
"""Headers that describe the dead-lettering, not the message."""
_FROM_WORKERS: Final = frozenset({EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS})
"""The keys of workers' messages, which have an exchange of their own."""
_SECRET: Final = re.compile(rb'("secret"\s*:\s*)"(?:[^"\\]|\\.)*("|\\?$)')
"""That of a worker process; its end may be cut off."""
_CUT: Final = "cut"
_OMITTED: Final = "omitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that no service could use, as it is stored."""

    fingerprint: str
    """A hash of the message and its dead-lettering: the same for each delivery and each copy."""
    code: str
    """A `Code`, a reason of the broker (`rejected`, `expired`, ...), or `unexplained`."""
    error: str
    body: bytes
    body_bytes: int
    """Size of the whole body."""
    stored_bytes: int
    type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    app_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    exchange: str = ""
    routing_key: str = ""
    original_routing_key: str = ""
    """The routing key of a replay."""
    published_at: datetime | None = None
    died_at: datetime | None = None
    """When it was dead-lettered; None where the message does not say."""
    tries: int = 0
    """How often it came back from a delay queue."""
    headers: Mapping[str, JsonValue] = field(default_factory=dict)
    """A value that was cut is an object: {"cut": its beginning, "bytes": its size}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter(DeadLetter):
    """A row; `body` is the part of the body that was read."""

    id: int
    died_at: datetime
    stored_at: datetime
    body_truncated: bool
    """Only the beginning of the body was stored."""


def read_dead_letter(delivery: Delivery, *, body_bytes_max: int) -> DeadLetter:
    """Read a delivery; a body above `body_bytes_max` is cut to its first `CUT_BODY_BYTES`, if it was kept."""
    code, error, died_at, died_under = _death(delivery)
    body_bytes = delivery.body_bytes
    body = delivery.body if body_bytes <= body_bytes_max else delivery.body[:CUT_BODY_BYTES]
    original_key = delivery.headers.get(ORIGINAL_KEY_HEADER, died_under)
    if original_key in _FROM_WORKERS or delivery.routing_key in _FROM_WORKERS:
        body = without_secret(body)
    headers = storable_headers(delivery.headers)
    return DeadLetter(
        fingerprint=_fingerprint(delivery, code, error, died_at),
        code=_text(code)[:_CODE_CHARS_MAX],
        error=_text(error)[:_ERROR_CHARS_MAX],
        type=_text_or_none(delivery.type),
        message_id=_text_or_none(delivery.message_id),
        correlation_id=_text_or_none(delivery.correlation_id),
        app_id=_text_or_none(delivery.app_id),
        reply_to=_text_or_none(delivery.reply_to),
        content_type=_text_or_none(delivery.content_type),
        exchange=_text(delivery.exchange),
        routing_key=_text(delivery.routing_key),
        original_routing_key=_text(_routing_key(original_key) or delivery.routing_key),
        published_at=_instant(delivery.timestamp),
        died_at=died_at,
        tries=_tries_of(delivery),
        headers=headers,
        body=body,
        body_bytes=body_bytes,
        stored_bytes=_ROW_BYTES + len(_json(headers)) + len(body),
    )


def without_secret(body: bytes) -> bytes:
    """Return a message of a worker without the secret that identifies its sender."""
    return _SECRET.sub(rb'\1""', body)


def bare_dead_letter(delivery: Delivery, reason: str) -> DeadLetter:
    """Return what is stored of a message that cannot be read or that the database refuses."""
    body = delivery.body[:CUT_BODY_BYTES]
    return DeadLetter(
        fingerprint=hashlib.sha256(delivery.body).hexdigest()[:32],
        code=UNEXPLAINED,
        error=_text(f"the properties of the message cannot be stored: {reason}")[:_ERROR_CHARS_MAX],
        body=body,
        body_bytes=delivery.body_bytes,
        stored_bytes=_ROW_BYTES + len(body),
    )


def storable_headers(headers: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return headers as bounded JSON; cut, replaced and omitted values are marked."""
    stored: dict[str, JsonValue] = {}
    size_bytes = 0
    for index, (name, value) in enumerate(headers.items()):
        fit = _storable(value)
        size_bytes += len(_json({name: fit}))
        if size_bytes > HEADERS_BYTES_MAX:
            stored["..."] = {_OMITTED: len(headers) - index}
            break
        if name not in ("x-delivery-count", "x-acquired-count"):
            stored[_text(name)] = fit
    return stored


def replayed(letter: StoredDeadLetter, *, body: bytes | None) -> Outgoing:
    """Return the original message, or one with another body, for its original routing key."""
    headers: dict[str, HeaderValue] = {
        name: value
        for name, value in letter.headers.items()
        if isinstance(value, str | int) and not _DEATH_HEADER.fullmatch(name) and _is_encodable(value)
    }
    return Outgoing(
        exchange=EXECUTOR if letter.original_routing_key in _FROM_WORKERS else EXECUTIONS,
        routing_key=letter.original_routing_key,
        body=letter.body if body is None else body,
        type=letter.type or "",
        # The same each time, so that a second replay is recognised as a duplicate.
        message_id=letter.message_id or str(UUID(hex=letter.fingerprint)),
        correlation_id=letter.correlation_id,
        reply_to=letter.reply_to,
        app_id=letter.app_id,
        headers=headers,
        timestamp=letter.published_at,
        content_type=letter.content_type or "application/octet-stream",
    )


def _death(delivery: Delivery) -> tuple[str, str, datetime | None, str | None]:
    """Return code, error, instant and routing key of the dead-lettering."""
    headers, deaths = delivery.headers, delivery.headers.get("x-death")
    if ERROR_CODE_HEADER in headers:
        code, error = str(headers[ERROR_CODE_HEADER]), str(headers.get(ERROR_HEADER, ""))
        return code, error, _instant(headers.get(DIED_AT_HEADER)), None
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        death: dict[str, Any] = deaths[0]
        reason, queue, keys = death.get("reason"), death.get("queue"), death.get("routing-keys")
        error = f"the broker took it out of queue {queue}: {reason}"
        return str(reason), error, _instant(death.get("time")), keys[0] if isinstance(keys, list) else None
    return UNEXPLAINED, "nothing in the message says why it is here", None, None


def _instant(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        aware = isinstance(found, datetime) and found.tzinfo is not None
        return found.astimezone(UTC) if isinstance(found, datetime) and aware else None
    except (ValueError, OverflowError):
        return None


def _fingerprint(delivery: Delivery, code: str, error: str, died_at: datetime | None) -> str:
    # Without the broker's own headers, which count deliveries.
    own = {name: value for name, value in delivery.headers.items() if not name.startswith("x-")}
    identity = (delivery.message_id, delivery.type, delivery.routing_key, code, error, died_at)
    digest = hashlib.sha256(repr(identity).encode("utf-8", "backslashreplace"))
    digest.update(_json(storable_headers(own)))
    digest.update(delivery.body)
    return digest.hexdigest()[:32]


def _storable(value: object) -> JsonValue:
    """Return a header's value as it is, or as an object where JSON or the database cannot hold it."""
    if isinstance(value, str):
        text = _text(value)
        if text == value and len(_json(text)) <= HEADER_BYTES_MAX:
            return text
        return {_CUT: text[:_CUT_HEADER_CHARS], "bytes": len(value.encode("utf-8", "replace"))}
    shown = _shown(value, _HEADER_DEPTH_MAX)
    as_json = _json(shown)
    if len(as_json) <= HEADER_BYTES_MAX:
        return shown
    return {_CUT: as_json.decode()[:_CUT_HEADER_CHARS], "bytes": len(as_json)}


def _shown(value: object, depth: int) -> JsonValue:
    """Return any AMQP value as JSON, for display."""
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case bytes() | bytearray():
            return b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case dict() | list() if not depth:
            return "..."
        case dict():
            return {_text(str(name)): _shown(each, depth - 1) for name, each in value.items()}
        case list():
            return [_shown(each, depth - 1) for each in value]
        case _:
            return _text(str(value))


def _is_encodable(value: str | int) -> bool:
    return isinstance(value, str) or -(2**63) <= value < 2**63


def _routing_key(value: object) -> str | None:
    """Return a value if it can be a routing key."""
    return value if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= 255 else None


def _text(value: str) -> str:
    """Return text that PostgreSQL stores, of the same length, because a name may be sent again."""
    return value.replace("\0", "?").encode("utf-8", "replace").decode()


def _text_or_none(value: str | None) -> str | None:
    return _text(value) if value else None


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _tries_of(delivery: Delivery) -> int:
    """Return how often the message was delayed and redelivered, as its sender says."""
    tries = delivery.headers.get("x-tries", 0)
    return min(max(tries, 0), 2**31 - 1) if isinstance(tries, int) else 0
