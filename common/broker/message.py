"""A message to publish, and what the broker answers to it: plain values, without JSON or scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Self

HeaderValue = str | int | bool | tuple[str, ...] | None
"""What our own headers hold, a subset of what AMQP tables allow."""


class SharedHeaders(dict[str, HeaderValue]):
    """Headers that many messages share and that never change: they are packed once, not once per message."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]


class Publication(Enum):
    """The broker's answer to one published message."""

    CONFIRMED = "confirmed"
    """Every queue that it was routed to has taken it."""
    RETURNED = "returned"
    """No queue is bound to its routing key."""
    REFUSED = "refused"
    """At least one queue was full or broken; others may have taken it."""


# Not frozen: creating a frozen one takes five times as long, and there is one per message.
@dataclass(slots=True, kw_only=True)
class Outgoing:
    """One message to publish: AMQP address, properties and packed body. It is not changed after creation."""

    exchange: str
    routing_key: str
    body: bytes
    type: str
    message_id: str
    correlation_id: str | None = None
    reply_to: str | None = None
    app_id: str | None = None
    headers: Mapping[str, HeaderValue] | None = None
    timestamp: datetime | int | None = None
    """Whole seconds on the wire."""
    persistent: bool = True
    mandatory: bool = True
    """Answered with RETURNED where no queue takes it; without it the broker drops it and confirms."""
    expiration_ms: int | None = None
    """How long a queue keeps it before it expires (and is dead-lettered, in a delay queue)."""
    content_type: str = "application/json"
    direct_address: tuple[str, str] | None = None
    """Exchange and routing key that reach the destination queue alone. Used where the message's own address
    also reaches other queues and one of those refuses it."""

    @property
    def address(self) -> tuple[str, str]:
        """Exchange and routing key."""
        return self.exchange, self.routing_key

    def to_direct_address(self) -> Self:
        """Return the same message, addressed to its destination queue alone."""
        assert self.direct_address is not None
        exchange, routing_key = self.direct_address
        return replace(self, exchange=exchange, routing_key=routing_key, mandatory=True, direct_address=None)
