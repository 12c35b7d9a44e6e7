"""A message received, and which deliveries of a channel are not settled yet.

In: frames of one delivery; tags as they arrive (ascending) and as they are settled (in any order). Out: the
message; one tag up to which all may be settled at once, and the single tags beyond it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from turnstile.common.broker.frames import Properties, instant, read_address, read_properties

_SETTLED_KEPT = 1000


class DeliveryChannel(Protocol):
    """The channel that a delivery came on."""

    @property
    def usable(self) -> bool:
        """Whether what is written now can still reach the broker."""


class Delivery:
    """One received message. It is void once its channel closed: the broker then delivers it again.

    Properties and address are read when first asked for: one or two of them identify most messages.
    """

    __slots__ = (
        "_address",
        "_encoded_properties",
        "_properties_read",
        "body",
        "body_bytes",
        "channel",
        "kept",
        "redelivered",
        "size_bytes",
        "tag",
    )

    def __init__(
        self,
        channel: DeliveryChannel,
        *,
        tag: int,
        redelivered: bool,
        address: bytes,
        properties: bytes,
        body: bytes,
        body_bytes: int,
        size_bytes: int,
        kept: bool,
    ) -> None:
        """`address` and `properties` are encoded as on the wire."""
        self.channel = channel
        """The channel that its tag belongs to: tags mean nothing on any other."""
        self.tag = tag
        self.redelivered = redelivered
        """Whether it may have been delivered before, as far as the broker knows."""
        self._address = address
        self._encoded_properties = properties
        self._properties_read: Properties | None = None
        self.body = body
        self.body_bytes = body_bytes
        """Size of the whole body, also where it was not kept."""
        self.size_bytes = size_bytes
        """Size of header and body as received."""
        self.kept = kept
        """False where the body was too large to keep and was dropped."""

    @property
    def _properties(self) -> Properties:
        properties = self._properties_read
        if properties is None:
            properties = self._properties_read = read_properties(self._encoded_properties)
        return properties

    @property
    def live(self) -> bool:
        """Whether settling it can still reach the broker."""
        return self.channel.usable

    @property
    def message_id(self) -> str | None:
        """The publisher's id of the message."""
        return self._properties.message_id

    @property
    def type(self) -> str | None:
        """The kind of message, like `execution.requested`."""
        return self._properties.type

    @property
    def correlation_id(self) -> str | None:
        """The execution id, once there is one."""
        return self._properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        """The queue that a reply goes to."""
        return self._properties.reply_to

    @property
    def app_id(self) -> str | None:
        """The kind of process that published it."""
        return self._properties.app_id

    @property
    def content_type(self) -> str | None:
        """The media type of the body."""
        return self._properties.content_type

    @property
    def is_persistent(self) -> bool:
        """Whether the publisher wants it to survive a restart of the broker."""
        return self._properties.delivery_mode == 2

    @property
    def headers(self) -> Mapping[str, object]:
        """Header table, with the broker's own `x-death` and others."""
        return self._properties.headers or {}

    @property
    def timestamp(self) -> datetime | None:
        """When the publisher created it, in whole seconds."""
        timestamp = self._properties.timestamp
        return None if timestamp is None else instant(timestamp)

    @property
    def routing_key(self) -> str:
        """The key it was published with."""
        return read_address(self._address)[1]

    @property
    def exchange(self) -> str:
        """The exchange it was published to."""
        return read_address(self._address)[0]

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
