"""A channel that publishes, delivers and settles in bulk: the one module that uses aiormq's internals.

In: batches of `Outgoing`, frames as the library's connection reader hands them to the channel. Out: one
future per published batch; deliveries, passed to a callback within the reader's own step.

Relies on four facts about the pinned versions of aiormq and pamqp (the contract tests check them): the
connection reader calls `await channel.frames.put((weight, frame))` for each frame of a channel, in order; the
content of one message is never interleaved with other frames of its channel; a finished channel rejects its
`closing` future; whole frames may be written to the transport between two frames of the library's own writer.
The library's own way costs a task per delivery and three futures per publish, matches returns by message id
alone (wrong for duplicates), and cancels its callers with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiormq.abc import FrameType
from aiormq.channel import Channel
from aiormq.connection import Connection
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.commands import Channel as ChannelMethod
from pamqp.header import ContentHeader

from turnstile.common.broker.confirms import Confirms
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import ChannelLost
from turnstile.common.broker.frames import pack_acks, pack_nacks, pack_publishes
from turnstile.common.broker.message import Outgoing, Publication

DeliverySink = Callable[[Delivery], None]
BodyFilter = Callable[[int], bool]
"""Called with the size of each body before it is read: whether to keep it."""
_FRAMES_MAX = 1000


class BulkChannel(Channel):
    """An open AMQP channel. Publish on it with `publish_all` only, which counts the delivery tags."""

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
        self.confirms = Confirms()
        self._transport = transport
        self._frame_bytes_max = connection.connection_tune.frame_max or 0
        self._refused = False
        self.gone: asyncio.Future[object] = self.closing
        """Done, with any exception or none, once the channel is closed."""
        self.gone.add_done_callback(self._fail_batches)

    @property
    def usable(self) -> bool:
        """Whether what is written now can still reach the broker."""
        return not (self._refused or self.is_closed or self._transport.is_closing())

    def publish_all(self, messages: Sequence[Outgoing]) -> asyncio.Future[list[Publication]]:
        """Write all messages at once; the future holds one answer each, in order, or raises ChannelLost.

        Cancelling the future does not take the messages back. Raises ChannelLost if the channel is closed and
        ValueError for a message that AMQP cannot carry; then nothing was sent.
        """
        payload = self._pack(messages)
        done = self.confirms.add(messages)
        self._transport.write(payload)
        return done

    def publish_unconfirmed(self, messages: Sequence[Outgoing]) -> None:
        """Write all messages at once, without an answer; only for a channel without confirms."""
        self._transport.write(self._pack(messages))

    def ack(self, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge all outstanding tags up to `upto` (0: none) and the `singles`, in one write."""
        if self.usable and (upto or singles):
            self._transport.write(pack_acks(self.number, upto, singles))

    def nack(self, upto: int, singles: Sequence[int], *, requeue: bool) -> None:
        """Reject them: requeued, or else dead-lettered."""
        if self.usable and (upto or singles):
            self._transport.write(pack_nacks(self.number, upto, singles, requeue=requeue))

    def _pack(self, messages: Sequence[Outgoing]) -> bytes:
        if not self.usable:
            raise ChannelLost(f"channel {self.number} is closed")
        return pack_publishes(self.number, messages, frame_bytes_max=self._frame_bytes_max)

    def stop_writing(self) -> None:
        """Write no more: the broker closed the channel, and a frame after close-ok ends the connection."""
        self._refused = True

    def _fail_batches(self, closing: asyncio.Future[object]) -> None:
        self.confirms.fail("connection closed" if closing.cancelled() else repr(closing.exception()))


class _FrameIntake(asyncio.Queue[tuple[int, FrameType]]):
    """The channel's inbox: handles contents and confirms on arrival, and queues the rest for the library."""

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
            outcome = Publication.CONFIRMED if isinstance(frame, Basic.Ack) else Publication.REFUSED
            self._channel.confirms.settle(frame.delivery_tag or 0, outcome, multiple=frame.multiple)
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
            channel.confirms.note_return(
                header.properties.message_id, method.exchange or "", method.routing_key or ""
            )
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
    """Open a channel beside those that the library opens itself. The caller bounds the wait."""
    # No await between choosing the number and taking it, so two callers cannot choose the same.
    number = max(connection.channels, default=0) + 1
    channel = BulkChannel(
        connection, number, transport=transport, confirms=confirms, on_delivery=on_delivery, keeps=keeps
    )
    connection.channels[number] = channel
    await channel.open()
    return channel


def is_blocked(connection: Connection) -> bool:
    """Whether the broker announced that it takes no publishes (memory or disk alarm)."""
    unblocked: asyncio.Event = connection._Connection__connection_unblocked  # type: ignore[attr-defined]
    return not unblocked.is_set()
