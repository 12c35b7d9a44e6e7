"""Frames between the two processes of `executor serve`: a length, then one JSON object.

In and out: `Frame`s over a pair of connected sockets that no other process can open. The end of the stream
means that the other process is gone.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""What may be written and not read by the other process; above it replies are dropped."""
_LENGTH: Final = struct.Struct(">I")


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. To the leader's process: settings, ask, counts, stop; from it: status, reply."""

    kind: Literal["settings", "ask", "counts", "stop", "status", "reply"]
    id: int = 0
    """Of a question, or of a request for its counts."""
    seconds: float = 0.0
    """How long its asker waits."""
    data: msgspec.Raw = msgspec.Raw(b"null")


_FRAMES: Final = msgspec.json.Decoder(Frame)
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class FrameStream:
    """One end of the stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def over(cls, end: socket.socket) -> "FrameStream":
        """Return the stream over a connected socket, which it owns from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def read(self) -> Frame | None:
        """Return the next frame; None: the other process is gone."""
        try:
            (length,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
            return _FRAMES.decode(await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def write(self, frame: Frame) -> bool:
        """Send a frame; False: the other process does not read, and the frame was dropped."""
        data = _encode(frame)
        transport = self.writer.transport
        if len(data) > FRAME_BYTES_MAX or transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            return False
        if transport.is_closing():
            return False
        self.writer.write(_LENGTH.pack(len(data)) + data)
        return True

    def close(self) -> None:
        """Close the stream; what was written is still sent."""
        self.writer.close()
