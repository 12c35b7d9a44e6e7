"""Reads what a process prints without ever holding more than a bound.

In: the reading end of a pipe. Out: its bytes, handed to a sink as they come; `drain` takes what is there at a
moment, so that what was printed before an answer is in the log of that answer. Next: `worker.attempt_log`.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

_CHUNK_BYTES: Final = 64 * 1024
# A pipe holds 1 MiB at the most by default; more than this in one go is a process that never stops printing.
_DRAIN_CHUNKS_MAX: Final = 64


class PipeReader:
    """Feeds `sink` from a pipe until it is closed; owns the file descriptor."""

    __slots__ = ("_fd", "_loop", "sink")

    def __init__(self, fd: int, sink: Callable[[bytes], None]) -> None:
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        self.sink = sink
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read_once)

    def drain(self) -> None:
        """Take what the pipe holds now."""
        for _ in range(_DRAIN_CHUNKS_MAX):
            if not self._read_once():
                return

    def close(self) -> None:
        """Stop reading; without effect the second time."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read_once(self) -> bool:
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.sink(data)
        return True


class ResultBuffer:
    """Collects a result up to a bound; says once when more came."""

    __slots__ = ("_bytes_max", "_data", "_overflowed", "size_bytes")

    def __init__(self, bytes_max: int, overflowed: asyncio.Event) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()
        self._overflowed = overflowed
        self.size_bytes = 0
        """All that came, kept or not."""

    def write(self, data: bytes) -> None:
        """Add `data` as far as the bound allows."""
        self.size_bytes += len(data)
        self._data += data[: max(0, self._bytes_max - len(self._data))]
        if self.size_bytes > self._bytes_max:
            self._overflowed.set()

    @property
    def is_complete(self) -> bool:
        """Whether nothing had to be thrown away."""
        return self.size_bytes <= self._bytes_max

    def content(self) -> bytes:
        """Return what was kept."""
        return bytes(self._data)
