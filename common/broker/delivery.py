"""A message received, and which deliveries of a channel are not settled yet.

In: frames of one delivery; tags as they arrive (ascending) and as they are settled (in any order). Out: the
message; one tag up to which all may be settled at once, and the single tags beyond it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pamqp.commands import Basic
    from pamqp.header import ContentHeader

_SETTLED_KEPT = 1000


class DeliveryChannel(Protocol):
    """The channel that a delivery came on."""

    @property
    def usable(self) -> bool:
        """Whether what is written now can still reach the broker."""


class Delivery:
    """One received message. It is void once its channel closed: the broker then delivers it again."""

    __slots__ = ("_header", "_method", "body", "channel", "kept", "size_bytes", "tag")

    def __init__(
        self,
        channel: DeliveryChannel,
        method: Basic.Deliver,
        header: ContentHeader,
        body: bytes,
        *,
        size_bytes: int,
        kept: bool,
    ) -> None:
        self.channel = channel
        """The channel that its tag belongs to: tags mean nothing on any other."""
        self._method = method
        self._header = header
        self.body = body
        self.size_bytes = size_bytes
        """Size of header and body as received."""
        self.kept = kept
        """False where the body was too large to keep and was dropped."""
        self.tag: int = method.delivery_tag or 0

    @property
    def body_bytes(self) -> int:
        """Size of the whole body, also where it was not kept."""
        return self._header.body_size

    @property
    def live(self) -> bool:
        """Whether settling it can still reach the broker."""
        return self.channel.usable

    @property
    def consumer(self) -> str:
        """The tag of the consumer that received it."""
        return self._method.consumer_tag or ""

    @property
    def message_id(self) -> str | None:
        """The publisher's id of the message."""
        return self._header.properties.message_id

    @property
    def type(self) -> str | None:
        """The kind of message, like `execution.requested`."""
        return self._header.properties.message_type

    @property
    def correlation_id(self) -> str | None:
        """The execution id, once there is one."""
        return self._header.properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        """The queue that a reply goes to."""
        return self._header.properties.reply_to

    @property
    def app_id(self) -> str | None:
        """The kind of process that published it."""
        return self._header.properties.app_id

    @property
    def content_type(self) -> str | None:
        """The media type of the body."""
        return self._header.properties.content_type

    @property
    def headers(self) -> Mapping[str, object]:
        """Header table, with the broker's own `x-death` and others."""
        return self._header.properties.headers or {}

    @property
    def timestamp(self) -> datetime | None:
        """When the publisher created it, in whole seconds."""
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
        """Whether it may have been delivered before, as far as the broker knows."""
        return bool(self._method.redelivered)

    def __repr__(self) -> str:
        return f"<Delivery {self.tag} {self.type} {self.routing_key!r} {self.size_bytes} bytes>"


class UnsettledTags:
    """The unsettled delivery tags of one channel, in order of arrival.

    `multiple` of AMQP settles every earlier tag: this class makes sure that no unsettled one is among them.
    """

    __slots__ = ("_open", "_order")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def arrive(self, tag: int) -> None:
        """Add the tag of a new delivery; tags of a channel only grow."""
        self._open.add(tag)
        self._order.append(tag)

    def settle(self, tags: Iterable[int]) -> tuple[int, list[int]]:
        """Return the tag up to which all may be settled (0: none), and the single tags beyond it.

        Tags that are not outstanding are left out, so settling twice is harmless.
        """
        settled = self._open.intersection(tags)
        self._open -= settled
        upto = 0
        while self._order and self._order[0] not in self._open:
            tag = self._order.popleft()
            if tag in settled:
                upto = tag
                settled.discard(tag)
        # One early delivery that stays open for hours must not keep the tags of all later ones in memory.
        if len(self._order) > 2 * len(self._open) + _SETTLED_KEPT:
            self._order = deque(tag for tag in self._order if tag in self._open)
        return upto, sorted(settled)
