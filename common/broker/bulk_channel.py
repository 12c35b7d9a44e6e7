"""A channel that publishes, delivers and settles in bulk: the one module that knows the library's inside.

In: batches of `Outgoing`, frames as the library's connection reader hands them to the channel. Out: one
future per published batch with what the broker said of each message; deliveries, handed over in the reader's
own step. Keeps its part of P4 and P5: nothing counts as published that the broker has not confirmed, and a
returned message is never taken for a delivered one.

What it builds on, in the pinned versions of aiormq and pamqp (the contract tests watch it): the connection
reader calls `await channel.frames.put((weight, frame))` for each frame of a channel, in order; the content
of one message is never interleaved with other frames of its channel; a finished channel rejects its
`closing` future; whole frames written to the transport between two frames of the library's own writer are as
good as its own. The library's own way costs a task for each delivery and three futures' callbacks for each
publish, matches returns by message id alone (so duplicates confuse it), and cancels its callers with its
connection.

Next: `connection` opens these channels, `publisher` and `consumer` use them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from aiormq.abc import FrameType
from aiormq.channel import Channel
from aiormq.connection import Connection
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.commands import Channel as ChannelMethod
from pamqp.header import ContentHeader

from turnstile.common.broker.delivery import Delivery, Outgoing, Publication
from turnstile.common.broker.frames import pack_acks, pack_nacks, pack_publishes

DeliverySink = Callable[[Delivery], None]
BodyFilter = Callable[[int], bool]
"""Asked with the size of each body before it comes: whether it is to be kept."""
_FRAMES_MAX = 1000


class ChannelLost(Exception):
    """The channel closed before the broker answered: what was asked of it may or may not have happened."""


class _Batch:
    """The messages of one write, their tags and what became of them so far."""

    __slots__ = ("done", "first_tag", "messages", "outcomes", "returned", "settled_below", "unsettled")

    def __init__(self, first_tag: int, messages: Sequence[Outgoing]) -> None:
        self.first_tag = first_tag
        self.messages = messages
        self.outcomes: list[Publication | None] = [None] * len(messages)
        self.unsettled = len(messages)
        self.settled_below = 0
        self.returned: set[int] = set()
        self.done: asyncio.Future[list[Publication]] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, outcome: Publication) -> None:
        if self.outcomes[index] is None:
            self.outcomes[index] = Publication.RETURNED if index in self.returned else outcome
            self.unsettled -= 1
            if not self.unsettled and not self.done.done():
                self.done.set_result([each for each in self.outcomes if each is not None])

    def settle_upto(self, index: int, outcome: Publication) -> None:
        for each in range(self.settled_below, index + 1):
            self.settle(each, outcome)
        self.settled_below = max(self.settled_below, index + 1)


class BulkChannel(Channel):
    """An open AMQP channel. Publish on it with `publish_all` only: it alone counts the delivery tags."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        *,
        transport: asyncio.WriteTransport,
        confirms: bool,
        on_delivery: DeliverySink | None,
        keeps: BodyFilter | None,
    ) -> None:
        super().__init__(connection, number, publisher_confirms=confirms, frame_buffer=_FRAMES_MAX)
        self.frames = _FrameIntake(self)
        self.on_delivery = on_delivery
        self.keeps = keeps
        self._transport = transport
        self._frame_bytes_max = connection.connection_tune.frame_max or 0
        self._batches: deque[_Batch] = deque()
        self._refused = False
        self.gone: asyncio.Future[object] = self.closing
        """Done, with whatever exception or none, once the channel is closed."""
        self.gone.add_done_callback(self._lose_batches)

    @property
    def usable(self) -> bool:
        """Whether what is written now can still reach the broker."""
        return not (self._refused or self.is_closed or self._transport.is_closing())

    def publish_all(self, messages: Sequence[Outgoing]) -> asyncio.Future[list[Publication]]:
        """Write all messages at once; the future holds one answer each, in order, or raises ChannelLost.

        Giving up the future takes nothing back: the messages are on their way. Raises ChannelLost if the
        channel is closed and ValueError for a message that AMQP cannot carry; then nothing was sent.
        """
        payload = self._pack(messages)
        batch = _Batch(self.delivery_tag + 1, messages)
        self.delivery_tag += len(messages)
        self._batches.append(batch)
        self._transport.write(payload)
        return batch.done

    def publish_unconfirmed(self, messages: Sequence[Outgoing]) -> None:
        """Write all messages at once and forget them; only for a channel without confirms."""
        self._transport.write(self._pack(messages))

    def ack(self, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge all outstanding tags up to `upto` (0: none) and the `singles`, in one write."""
        if self.usable and (upto or singles):
            self._transport.write(pack_acks(self.number, upto, singles))

    def nack(self, upto: int, singles: Sequence[int], *, requeue: bool) -> None:
        """Refuse them: back to the queue, or else to its dead letters."""
        if self.usable and (upto or singles):
            self._transport.write(pack_nacks(self.number, upto, singles, requeue=requeue))

    def _pack(self, messages: Sequence[Outgoing]) -> bytes:
        if not self.usable:
            raise ChannelLost(f"channel {self.number} is closed")
        return pack_publishes(self.number, messages, frame_bytes_max=self._frame_bytes_max)

    def take_confirmation(self, frame: Basic.Ack | Basic.Nack) -> None:
        """Settle the tag, or all tags up to it, and finish the batches that have every answer."""
        outcome = Publication.CONFIRMED if isinstance(frame, Basic.Ack) else Publication.REFUSED
        tag = frame.delivery_tag or 0
        for batch in self._batches:
            if batch.first_tag > tag:
                break
            index = tag - batch.first_tag
            last = len(batch.messages) - 1
            if frame.multiple:
                batch.settle_upto(min(index, last), outcome)
            elif index <= last:
                batch.settle(index, outcome)
        while self._batches and not self._batches[0].unsettled:
            self._batches.popleft()

    def take_return(self, frame: Basic.Return, header: ContentHeader) -> None:
        """Remember which message came back; its confirmation follows on the same channel.

        The first unsettled one of this id and address is meant: copies of a message share its fate, in order.
        """
        key = (header.properties.message_id, frame.exchange, frame.routing_key)
        for batch in self._batches:
            for index in range(batch.settled_below, len(batch.messages)):
                message = batch.messages[index]
                if (
                    (message.message_id, message.exchange, message.routing_key) == key
                    and batch.outcomes[index] is None
                    and index not in batch.returned
                ):
                    batch.returned.add(index)
                    return

    def stop_writing(self) -> None:
        """Write no more: the broker closed it; a frame after our answer would end the connection."""
        self._refused = True

    def _lose_batches(self, closing: asyncio.Future[object]) -> None:
        reason = "connection closed" if closing.cancelled() else repr(closing.exception())
        while self._batches:
            batch = self._batches.popleft()
            if not batch.done.done():
                batch.done.set_exception(ChannelLost(reason))
                # A publisher that timed out has left; its future must not be reported as forgotten.
                batch.done.exception()


class _FrameIntake(asyncio.Queue[tuple[int, FrameType]]):
    """The channel's inbox: contents and confirmations are dealt with on arrival, the rest by the reader."""

    def __init__(self, channel: BulkChannel) -> None:
        super().__init__(maxsize=_FRAMES_MAX)
        self._channel = channel
        self._method: Basic.Deliver | Basic.Return | None = None
        self._header: ContentHeader | None = None
        self._pieces: list[bytes] = []
        self._missing_bytes = 0
        self._size_bytes = 0
        self._kept = True

    async def put(self, item: tuple[int, FrameType]) -> None:
        frame = item[1]
        if isinstance(frame, Basic.Deliver | Basic.Return):
            self._method = frame
        elif isinstance(frame, Basic.Ack | Basic.Nack):
            self._channel.take_confirmation(frame)
        elif self._method is not None and isinstance(frame, ContentHeader):
            self._begin(item[0], frame)
            if not self._missing_bytes:
                self._complete(self._method, frame)
        elif self._method is not None and self._header is not None and isinstance(frame, ContentBody):
            if self._kept:
                self._pieces.append(frame.value)
            self._missing_bytes -= len(frame.value)
            if self._missing_bytes <= 0:
                self._complete(self._method, self._header)
        else:
            if isinstance(frame, ChannelMethod.Close):
                self._channel.stop_writing()
            await super().put(item)

    def _begin(self, header_bytes: int, header: ContentHeader) -> None:
        self._header = header
        self._pieces = []
        self._missing_bytes = header.body_size
        self._size_bytes = header_bytes + header.body_size
        keeps = self._channel.keeps
        self._kept = keeps is None or isinstance(self._method, Basic.Return) or keeps(self._size_bytes)

    def _complete(self, method: Basic.Deliver | Basic.Return, header: ContentHeader) -> None:
        channel, self._method, self._header = self._channel, None, None
        if isinstance(method, Basic.Return):
            channel.take_return(method, header)
        elif channel.on_delivery is not None:
            pieces, self._pieces = self._pieces, []
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            channel.on_delivery(
                Delivery(channel, method, header, body, size_bytes=self._size_bytes, kept=self._kept)
            )


async def open_bulk_channel(
    connection: Connection,
    transport: asyncio.WriteTransport,
    *,
    confirms: bool = False,
    on_delivery: DeliverySink | None = None,
    keeps: BodyFilter | None = None,
) -> BulkChannel:
    """Open a channel beside those the library opens itself. The caller bounds the wait."""
    # No await between choosing the number and taking it, so two callers cannot choose the same.
    number = max(connection.channels, default=0) + 1
    channel = BulkChannel(
        connection, number, transport=transport, confirms=confirms, on_delivery=on_delivery, keeps=keeps
    )
    connection.channels[number] = channel
    await channel.open()
    return channel


def is_blocked(connection: Connection) -> bool:
    """Whether the broker refuses to read what we publish (memory or disk alarm), as far as it told us."""
    unblocked: asyncio.Event = connection._Connection__connection_unblocked  # type: ignore[attr-defined]
    return not unblocked.is_set()
