"""Asks the leader process of the same `executor serve`, over their pair of sockets.

In: a question's bytes, or the wish for what it has counted. Out: the reply's bytes, or None without one in
time. Many questions may be under way.
"""

import asyncio
from itertools import count
from typing import Final, Literal

import msgspec

from turnstile.executor.asking.frames import Frame, FrameStream

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
