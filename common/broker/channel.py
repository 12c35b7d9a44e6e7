"""A channel that publishes, delivers and settles in bulk: the one module that uses aiormq's internals.

In: batches of `Outgoing`; the channel's frames, as `FrameReader` finds them. Out: one future per published
batch; deliveries, passed to a callback while the transport reads. Method calls stay the library's.

Relies on four facts about the pinned versions of aiormq (the contract tests check them): the factory of the
transport returns before anything is read from it; the library takes any frame, also a heartbeat, as a sign
of life; a finished channel rejects its `closing` future; whole frames may be written to the transport between
two frames of the library's own writer. And on one of RabbitMQ: the content of one message is never
interleaved with other frames of its channel.
The library's own way costs a task per delivery and three futures per publish, matches returns by message id
alone (wrong for duplicates), and cancels its callers with its connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from aiormq.channel import Channel
from aiormq.connection import Connection

from turnstile.common.broker.confirms import Batch, Confirms
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import ChannelLost
from turnstile.common.broker.frames import (
    pack_acks,
    pack_nacks,
    pack_publishes,
    read_address,
    read_properties,
)
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.reader import BODY, HEADER, METHOD, FrameReader

DeliverySink = Callable[[Delivery], None]
BodyFilter = Callable[[int], bool]
"""Called with the size of each body before it is read: whether to keep it."""
_FRAMES_MAX: Final = 1000

# 1.8.3 and RabbitMQ's extensions: class and method of the frames that are handled here.
_DELIVER: Final = 60 << 16 | 60
_RETURN: Final = 60 << 16 | 50
_ACK: Final = 60 << 16 | 80
_NACK: Final = 60 << 16 | 120
_CLOSE: Final = 20 << 16 | 40
_CLOSE_OK: Final = 20 << 16 | 41

_method = struct.Struct(">I").unpack_from
_tag_and_bits = struct.Struct(">QB").unpack_from
_size = struct.Struct(">Q").unpack_from


class BulkChannel(Channel):
    """An open AMQP channel. Publish on it with `publish_all` only, which counts the delivery tags."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        *,
        transport: asyncio.WriteTransport,
        reader: FrameReader,
        confirms: bool,
        on_delivery: DeliverySink | None,
        keeps: BodyFilter | None,
    ) -> None:
        super().__init__(connection, number, publisher_confirms=confirms, frame_buffer=_FRAMES_MAX)
        reader.add_channel(number, _FrameReceiver(self, reader).take)
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

    @property
    def close_reason(self) -> str | None:
        """Why the broker closed it, in its words; None: it is open, or its connection ended."""
        closed = self._refused and self.gone.done() and not self.gone.cancelled()
        return str(self.gone.exception()) if closed else None

    def publish_all(self, messages: Sequence[Outgoing]) -> asyncio.Future[list[Publication]]:
        """Write all messages at once; the future holds one answer each, in order, or raises ChannelLost.

        Cancelling the future does not take the messages back. Raises ChannelLost if the channel is closed and
        ValueError for a message that AMQP cannot carry; then nothing was sent.
        """
        return self.publish_batch(messages).done

    def publish_batch(self, messages: Sequence[Outgoing]) -> Batch:
        """Write all messages at once, as `publish_all`, for a caller that may give up on some answers."""
        payload = self._pack(messages)
        batch = self.confirms.add(messages)
        self._transport.write(payload)
        return batch

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


class _FrameReceiver:
    """Handles contents and confirms of one channel where they are read; leaves the rest to the library."""

    __slots__ = (
        "_address",
        "_awaits",
        "_body_bytes",
        "_channel",
        "_is_return",
        "_kept",
        "_missing_bytes",
        "_pieces",
        "_properties",
        "_reader",
        "_redelivered",
        "_size_bytes",
        "_tag",
    )

    def __init__(self, channel: BulkChannel, reader: FrameReader) -> None:
        self._channel = channel
        self._reader = reader
        self._awaits = METHOD
        self._is_return = False
        self._tag = 0
        self._redelivered = False
        self._address = self._properties = b""
        self._pieces: list[bytes] = []
        self._body_bytes = self._missing_bytes = 0
        self._size_bytes = 0
        self._kept = True

    def take(self, kind: int, data: bytes, start: int, end: int) -> bool:
        """Handle one frame; False where it is the library's."""
        if kind == METHOD:
            return self._take_method(data, start, end)
        if kind != self._awaits:
            # The content of a message that the library asked for, by `basic.get`.
            return False
        if kind == HEADER:
            self._begin(data, start, end)
        else:
            if self._kept:
                self._pieces.append(data[start:end])
            self._missing_bytes -= end - start
        if self._missing_bytes <= 0:
            self._complete()
        return True

    def _take_method(self, data: bytes, start: int, end: int) -> bool:
        (method,) = _method(data, start)
        if method == _DELIVER:
            arguments = start + 5 + data[start + 4]
            self._tag, redelivered = _tag_and_bits(data, arguments)
            self._redelivered = bool(redelivered & 1)
            self._address = data[arguments + 9 : end]
            self._is_return, self._awaits = False, HEADER
        elif method in (_ACK, _NACK):
            tag, bits = _tag_and_bits(data, start + 4)
            outcome = Publication.CONFIRMED if method == _ACK else Publication.REFUSED
            self._channel.confirms.settle(tag, outcome, multiple=bool(bits & 1))
        elif method == _RETURN:
            # After the reply code comes the reply text.
            self._address = data[start + 7 + data[start + 6] : end]
            self._is_return, self._awaits = True, HEADER
        else:
            if method == _CLOSE:
                self._channel.stop_writing()
            if method in (_CLOSE, _CLOSE_OK):
                # The number is free: the next channel that has it may be one of the library's.
                self._reader.remove_channel(self._channel.number)
            return False
        return True

    def _begin(self, data: bytes, start: int, end: int) -> None:
        (self._body_bytes,) = _size(data, start + 4)
        self._missing_bytes = self._body_bytes
        self._properties = data[start + 12 : end]
        # With the start and the end of the header's frame.
        self._size_bytes = end - start + 8 + self._body_bytes
        keeps = self._channel.keeps
        self._kept = not self._is_return and (keeps is None or keeps(self._size_bytes))
        self._awaits = BODY

    def _complete(self) -> None:
        channel, pieces, self._pieces, self._awaits = self._channel, self._pieces, [], METHOD
        if self._is_return:
            exchange, routing_key = read_address(self._address)
            channel.confirms.note_return(read_properties(self._properties).message_id, exchange, routing_key)
        elif channel.on_delivery is not None:
            channel.on_delivery(
                Delivery(
                    channel,
                    tag=self._tag,
                    redelivered=self._redelivered,
                    address=self._address,
                    properties=self._properties,
                    body=pieces[0] if len(pieces) == 1 else b"".join(pieces),
                    body_bytes=self._body_bytes,
                    size_bytes=self._size_bytes,
                    kept=self._kept,
                )
            )


async def open_bulk_channel(
    connection: Connection,
    transport: asyncio.WriteTransport,
    reader: FrameReader,
    *,
    confirms: bool = False,
    on_delivery: DeliverySink | None = None,
    keeps: BodyFilter | None = None,
) -> BulkChannel:
    """Open a channel beside those that the library opens itself. The caller bounds the wait."""
    # No await between choosing the number and taking it, so two callers cannot choose the same.
    # The lowest: above the highest, channels that take turns would reach the end of the numbers.
    number = next(each for each in count(1) if each not in connection.channels)
    channel = BulkChannel(
        connection,
        number,
        transport=transport,
        reader=reader,
        confirms=confirms,
        on_delivery=on_delivery,
        keeps=keeps,
    )
    connection.channels[number] = channel
    try:
        await channel.open()
    except BaseException:
        if number not in connection.channels:
            reader.remove_channel(number)
        raise
    return channel


def is_blocked(connection: Connection) -> bool:
    """Whether the broker announced that it takes no publishes (memory or disk alarm)."""
    unblocked: asyncio.Event = connection._Connection__connection_unblocked  # type: ignore[attr-defined]
    return not unblocked.is_set()
