"""The two values that cross the broker: a message to publish and a message received.

In: properties and body as the message module wrote them. Out: the same, with the delivery tag that settles
it. Neither knows JSON or the scheduler. Next: `frames` packs an `Outgoing`, `bulk_channel` makes a
`Delivery`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pamqp.commands import Basic
    from pamqp.header import ContentHeader

    from turnstile.common.broker.bulk_channel import BulkChannel

HeaderValue = str | int | bool | tuple[str, ...] | None
"""What our own headers hold: AMQP tables allow more, our messages need no more."""


class Publication(Enum):
    """What the broker said about one published message."""

    CONFIRMED = "confirmed"
    """Every queue it was routed to has taken it."""
    RETURNED = "returned"
    """No queue is bound to its routing key: nobody has it."""
    REFUSED = "refused"
    """A queue was full or broken: nobody, or not everybody, has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to publish: AMQP address, properties and packed body."""

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
    """Come back as RETURNED where no queue would take it; without it the broker drops it and confirms."""
    expiration_ms: int | None = None
    """How long a queue keeps it before it expires (and is dead-lettered, in a delay queue)."""
    content_type: str = "application/json"
    door: tuple[str, str] | None = None
    """Exchange and routing key that lead to the destination queue alone. Used where the message's own address
    also reaches queues of others and one of those refuses it."""

    def by_door(self) -> Self:
        """Return the same message addressed to its own queue alone."""
        assert self.door is not None
        exchange, routing_key = self.door
        return replace(self, exchange=exchange, routing_key=routing_key, mandatory=True, door=None)


class Delivery:
    """One received message. It is void once its channel closed: the broker then delivers it again."""

    __slots__ = ("_channel", "_header", "_method", "body", "kept", "size_bytes", "tag")

    def __init__(
        self,
        channel: BulkChannel,
        method: Basic.Deliver,
        header: ContentHeader,
        body: bytes,
        *,
        size_bytes: int,
        kept: bool,
    ) -> None:
        self._channel = channel
        self._method = method
        self._header = header
        self.body = body
        self.size_bytes = size_bytes
        """Of its header and its body, as they came."""
        self.kept = kept
        """False: the body was not wanted, and is not here."""
        self.tag: int = method.delivery_tag or 0

    @property
    def channel(self) -> BulkChannel:
        """The channel whose tag this is: tags mean nothing on any other."""
        return self._channel

    @property
    def body_bytes(self) -> int:
        """Size of the whole body, also where it was not kept."""
        return self._header.body_size

    @property
    def live(self) -> bool:
        """Whether settling it can still reach the broker."""
        return self._channel.usable

    @property
    def consumer(self) -> str:
        """The name of the consumer that it was sent to."""
        return self._method.consumer_tag or ""

    @property
    def message_id(self) -> str | None:
        """The publisher's name for it."""
        return self._header.properties.message_id

    @property
    def type(self) -> str | None:
        """Which of our messages it is."""
        return self._header.properties.message_type

    @property
    def correlation_id(self) -> str | None:
        """The execution id, once there is one."""
        return self._header.properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        """The queue that waits for an answer."""
        return self._header.properties.reply_to

    @property
    def app_id(self) -> str | None:
        """Which kind of process published it."""
        return self._header.properties.app_id

    @property
    def content_type(self) -> str | None:
        """What the body is."""
        return self._header.properties.content_type

    @property
    def headers(self) -> Mapping[str, object]:
        """Header table, with the broker's own `x-death` and others."""
        return self._header.properties.headers or {}

    @property
    def timestamp(self) -> datetime | None:
        """When its publisher made it, in whole seconds."""
        return self._header.properties.timestamp

    @property
    def routing_key(self) -> str:
        """The key it was published with."""
        return self._method.routing_key or ""

    @property
    def exchange(self) -> str:
        """The exchange it was published to."""
        return self._method.exchange or ""

    @property
    def redelivered(self) -> bool:
        """Whether somebody was handed this message before, as far as the broker knows."""
        return bool(self._method.redelivered)

    def __repr__(self) -> str:
        return f"<Delivery {self.tag} {self.type} {self.routing_key!r} {self.size_bytes} bytes>"
