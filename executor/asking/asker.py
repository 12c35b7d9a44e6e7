"""Asks what only the leader knows, of any executor: the own leader process first, else over the broker.

In: a question. Out: its answer, or a value that says that there is none now; never an exception. The caller
then shows what the database knows (DESIGN: questions). The two processes of `executor serve` exchange frames,
a length and then one JSON object, over a pair of sockets that no other process can open; the end of that
stream means that the other process is gone.
"""

import asyncio
import socket
import struct
import time
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, TypeVar

import msgspec

from turnstile.executor.asking.broker_rpc import BrokerAsker
from turnstile.executor.questions.protocol import (
    Answered,
    Question,
    Unanswered,
    check,
    pack_question,
    read_reply,
)

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


_UNDER_WAY_MAX: Final = 1000


class LocalAsker:
    """Safe to share between the tasks of one loop."""

    def __init__(self) -> None:
        self._stream: FrameStream | None = None
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a process to ask."""
        return self._stream is not None

    def connect(self, stream: FrameStream | None) -> None:
        """Ask the process at the other end from now on; None: there is none."""
        self._stream = stream
        if stream is None:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.cancel()

    async def ask(self, data: bytes, seconds: float) -> bytes | None:
        """Return the reply; None: there is none in time, or no leader process."""
        return await self._request("ask", data, seconds)

    async def counts(self, seconds: float) -> bytes | None:
        """Return what the process has counted, also while it does not lead; None: no answer in time."""
        return await self._request("counts", b"null", seconds)

    async def _request(self, kind: Literal["ask", "counts"], data: bytes, seconds: float) -> bytes | None:
        if self._stream is None or len(self._waiting) >= _UNDER_WAY_MAX:
            return None
        number, reply = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            if not self._stream.write(Frame(kind, number, seconds, msgspec.Raw(data))):
                return None
            # Not awaited itself: the end of the process cancels the future, and not this task.
            await asyncio.wait({reply}, timeout=seconds)
            return reply.result() if reply.done() and not reply.cancelled() else None
        finally:
            self._waiting.pop(number, None)

    def take_reply(self, frame: Frame) -> None:
        """Pass a reply to its asker, if that still waits."""
        reply = self._waiting.get(frame.id)
        if reply is not None and not reply.done():
            reply.set_result(bytes(frame.data))


A = TypeVar("A")

_COUNTS_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
"""How long an asker waits: longer than any turn, shorter than a client of the API."""


class Asker:
    """Safe to share between the tasks of one loop."""

    def __init__(self, local: LocalAsker, broker: BrokerAsker) -> None:
        self._local, self._broker = local, broker

    async def counts(self) -> bytes | None:
        """Return what the leader's process of this executor has counted; None: it does not answer."""
        return await self._local.counts(_COUNTS_SECONDS)

    async def ask(self, question: Question[A], seconds: float = ANSWER_SECONDS) -> Answered[A] | Unanswered:
        """Return the answer. Raises InvalidQuestion for one that no leader answers."""
        check(question)
        data, until = pack_question(question), time.monotonic() + seconds
        reply = await self._local.ask(data, seconds) if self._local.is_connected else None
        found: Answered[A] | Unanswered | None = None if reply is None else read_reply(question, reply)
        if found is not None and not (isinstance(found, Unanswered) and found.why == "not_leading"):
            return found
        reply = await self._broker.ask(data, max(until - time.monotonic(), 0.0))
        if reply is not None:
            return read_reply(question, reply)
        return Unanswered(why="no_answer", message=f"no leader answered within {seconds:g} s")
