"""Reads frames from a transport: in one pass over each read, without a task, a future or an object per frame.

In: the bytes of one connection as its transport reads them. Out: the frames of chosen channels, each passed
to the channel within the same step, unless the channel leaves it; and all other frames, unchanged and in
order, to the client library's own protocol, which still does handshake, heartbeats, method calls and the end
of the connection.

The library's own reader costs two awaits, a task switch and three generic parses for each frame. Sits on the
transport from the first byte, so it knows where each frame begins: the server speaks only when spoken to.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
_HEARTBEAT: Final = 8
_FRAME_KINDS: Final = frozenset((METHOD, HEADER, BODY, _HEARTBEAT))
_FRAME_END: Final = 0xCE
_START_BYTES: Final = 7
"""Type, channel and size; behind the payload follows one more octet, the frame end (4.2.3)."""
_OVERHEAD_BYTES: Final = 8
_HEARTBEAT_FRAME: Final = b"\x08\0\0\0\0\0\0\xce"
_SIGN_OF_LIFE_SECONDS: Final = 1.0

_frame_start = struct.Struct(">BHI").unpack_from

TakeFrame = Callable[[int, bytes, int, int], bool]
"""Called with the kind of a frame and where its payload is: data, start, end. Returns whether it was taken;
if not, the frame is the library's. Called while the transport reads: must not block, and what it raises ends
the connection."""


class FrameReader(asyncio.Protocol):
    """The protocol of one transport, in front of the library's. Holds back at most one incomplete frame."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        """Take the place of the transport's protocol, before the first byte was read."""
        library = transport.get_protocol()
        assert isinstance(library, asyncio.Protocol)
        self._transport = transport
        self._library = library
        self._takers: dict[int, TakeFrame] = {}
        self._now = asyncio.get_running_loop().time
        self._sign_of_life_at = self.heard_at = self._now()
        """When something arrived last, by the clock of the loop."""
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._wanted_bytes = 0
        self.frame_bytes_max = 0
        """The agreed frame size; 0: not agreed yet, or without a bound."""
        transport.set_protocol(self)

    def add_channel(self, number: int, take: TakeFrame) -> None:
        """Offer all further frames of a channel to `take` first."""
        self._takers[number] = take

    def remove_channel(self, number: int) -> None:
        """Leave all further frames of a channel to the library."""
        self._takers.pop(number, None)

    def data_received(self, data: bytes) -> None:
        """Hand over all frames that are complete."""
        self.heard_at = self._now()
        if self._pieces:
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            if self._pieces_bytes < self._wanted_bytes:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        takers = self._takers
        size_bytes = len(data)
        begin = untaken = 0
        end = _OVERHEAD_BYTES
        left: list[bytes] = []
        taken = False
        while end <= size_bytes:
            kind, channel, payload_bytes = _frame_start(data, begin)
            end = begin + payload_bytes + _OVERHEAD_BYTES
            if end > size_bytes:
                break
            take = takers.get(channel)
            if (
                take is not None
                # A frame without its end is no frame: the library finds that, and ends the connection.
                and data[end - 1] == _FRAME_END
                and take(kind, data, begin + _START_BYTES, end - 1)
            ):
                if untaken < begin:
                    left.append(data[untaken:begin])
                untaken = end
                taken = True
            begin = end
            end += _OVERHEAD_BYTES
        if untaken < begin:
            left.append(data[untaken:begin])
        if taken and not left:
            self._show_sign_of_life(left)
        if left:
            self._library.data_received(b"".join(left))
        if begin < size_bytes:
            self._hold_back(data[begin:], end - begin)

    def _show_sign_of_life(self, left: list[bytes]) -> None:
        """Give the library a heartbeat from time to time, while it sees nothing of the frames that arrive.

        The library ends a connection on which it saw no frame for three heartbeats; a broker that has
        something to deliver sends none.
        """
        now = self._now()
        if now - self._sign_of_life_at >= _SIGN_OF_LIFE_SECONDS:
            self._sign_of_life_at = now
            left.append(_HEARTBEAT_FRAME)

    def _hold_back(self, piece: bytes, wanted_bytes: int) -> None:
        """Keep the beginning of a frame until the rest arrives."""
        if piece[0] not in _FRAME_KINDS:
            # Not AMQP 0-9-1, so no size to wait for: the library says so, and ends the connection.
            self._transport.set_protocol(self._library)
            self._library.data_received(piece)
        elif wanted_bytes > self.frame_bytes_max > 0:
            # 4.2.3: larger than agreed. Nothing bounds the memory that it would take.
            self._transport.abort()
        else:
            self._pieces.append(piece)
            self._pieces_bytes = len(piece)
            self._wanted_bytes = wanted_bytes

    def _give_back(self) -> None:
        """Let the library see how far the stream came."""
        if self._pieces:
            piece = b"".join(self._pieces)
            self._pieces.clear()
            self._library.data_received(piece)

    def eof_received(self) -> bool | None:
        """Pass on the end of the stream."""
        self._give_back()
        return self._library.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the loss of the connection."""
        self._give_back()
        self._library.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the write buffer is full: the library's writer waits."""
        self._library.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the write buffer has room again."""
        self._library.resume_writing()
