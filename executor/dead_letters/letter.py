"""One dead letter: what it was, why and when it died, and the message it becomes when it is sent again.

In: a delivery of the dead letters' queue. Out: a `Letter`, pure. Our own services put the reason into headers
(`common.envelopes.dead_letter`); what the broker itself put there says so in its header `x-death`. Next:
`look` makes them.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from common.broker.delivery import Delivery, HeaderValue, Outgoing
from common.broker.topology import EXECUTIONS
from common.envelopes import DIED_AT_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, ORIGINAL_KEY_HEADER, tries_of

UNEXPLAINED: Final = "unexplained"
"""The code of a letter that says nothing about its death: somebody published it here."""
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,199}")
"""A message id that can stand in a path and in a shell as it is."""
_OF_DEATH: Final = re.compile(
    r"x-(error.*|tries|died-at|original-routing-key|death|delivery-count|(first|last)-death-.*)"
)
"""Headers that tell of the death, not of the message."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message that nobody could use."""

    id: str
    """Its message id, or its fingerprint where it has none that will do."""
    fingerprint: str
    """What it is: a hash of its content and its death. Names it too, whatever becomes of other letters."""
    code: str
    """A `Code` of ours, a word of the broker's (`rejected`, `expired`, ...), or `unexplained`."""
    error: str
    type: str | None
    message_id: str | None
    correlation_id: str | None
    app_id: str | None
    content_type: str | None
    routing_key: str
    original_routing_key: str
    """The key under which it is sent again."""
    published_at: datetime | None
    died_at: datetime | None
    tries: int
    """How often it had come back from a delay queue."""
    headers: Mapping[str, object]
    body: bytes
    """Its beginning."""
    body_bytes: int

    def is_named(self, name: str) -> bool:
        """Tell whether `name` means this letter."""
        return name in (self.id, self.fingerprint)


def read_letter(delivery: Delivery, *, body_bytes_max: int) -> Letter:
    """Read a delivery, and keep at most so much of its body."""
    code, error, died_at, died_under = _death(delivery)
    original_key = delivery.headers.get(ORIGINAL_KEY_HEADER, died_under)
    fingerprint = _fingerprint(delivery, code, error, died_at)
    message_id = delivery.message_id or None
    return Letter(
        id=message_id if message_id and _PLAIN_ID.fullmatch(message_id) else fingerprint,
        fingerprint=fingerprint,
        code=code,
        error=error,
        type=delivery.type or None,
        message_id=message_id,
        correlation_id=delivery.correlation_id,
        app_id=delivery.app_id,
        content_type=delivery.content_type,
        routing_key=delivery.routing_key,
        original_routing_key=original_key if isinstance(original_key, str) else delivery.routing_key,
        published_at=delivery.timestamp,
        died_at=died_at,
        tries=tries_of(delivery),
        headers={name: value for name, value in delivery.headers.items() if name != "x-delivery-count"},
        body=delivery.body[:body_bytes_max],
        body_bytes=len(delivery.body),
    )


def in_order(letters: Iterable[Letter]) -> list[Letter]:
    """Return letters in the order of their deaths, each under an id of its own.

    Of several with one message id the first keeps it: the others go by their fingerprints.
    """
    taken: dict[str, str] = {}
    ordered = sorted(letters, key=lambda letter: letter.died_at or _LONG_AGO)
    return [
        letter
        if taken.setdefault(letter.id, letter.fingerprint) == letter.fingerprint
        else replace(letter, id=letter.fingerprint)
        for letter in ordered
    ]


def sent_again(delivery: Delivery, letter: Letter) -> Outgoing:
    """Return the message as it first came, for the way that it was on."""
    headers: dict[str, HeaderValue] = {
        name: value
        for name, value in delivery.headers.items()
        if isinstance(value, str | int | bool) and not _OF_DEATH.fullmatch(name)
    }
    return Outgoing(
        exchange=EXECUTIONS,
        routing_key=letter.original_routing_key,
        body=delivery.body,
        type=delivery.type or "",
        # The same each time, so that a letter sent again twice is recognised as one message.
        message_id=delivery.message_id or str(UUID(hex=letter.fingerprint)),
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        app_id=delivery.app_id,
        headers=headers,
        timestamp=delivery.timestamp,
        content_type=delivery.content_type or "application/octet-stream",
    )


def _death(delivery: Delivery) -> tuple[str, str, datetime | None, str | None]:
    """Return code, error, instant and routing key of the death."""
    headers, deaths = delivery.headers, delivery.headers.get("x-death")
    if ERROR_CODE_HEADER in headers:
        code, error = str(headers[ERROR_CODE_HEADER]), str(headers.get(ERROR_HEADER, ""))
        return code, error, _instant(headers.get(DIED_AT_HEADER)), None
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        death: dict[str, Any] = deaths[0]
        reason, queue, keys = death.get("reason"), death.get("queue"), death.get("routing-keys")
        error = f"the broker took it out of queue {queue}: {reason}"
        key = keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else None
        return str(reason), error, _instant(death.get("time")), key
    return UNEXPLAINED, "nothing in the message says why it is here", None, None


def _instant(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, datetime) and found.tzinfo is not None else None


def _fingerprint(delivery: Delivery, code: str, error: str, died_at: datetime | None) -> str:
    told = (delivery.message_id, delivery.type, delivery.routing_key, code, error, died_at)
    digest = hashlib.sha256(repr(told).encode("utf-8", "backslashreplace"))
    digest.update(delivery.body)
    return digest.hexdigest()[:32]
