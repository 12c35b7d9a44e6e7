"""Writes log lines in a thread of its own: a log that is read too slowly, or not at all, blocks no service.

In: records, from any thread. Out: lines on a stream. What waits is bounded: lines that do not fit are dropped
and counted, and a line says how many once there is room again.
"""

import logging
import os
import queue
import select
import threading
from contextlib import suppress
from typing import Final, TextIO

_BYTES_MAX: Final = 4 * 1024 * 1024
_FLUSH_SECONDS: Final = 1.0
"""Longest wait at the end of the process."""


class LogSink(logging.Handler):
    """Formats in the thread that logs, and writes in another."""

    def __init__(self, stream: TextIO, *, bytes_max: int = _BYTES_MAX) -> None:
        """Let at most `bytes_max` wait."""
        super().__init__()
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._bytes_max = bytes_max
        self._waiting: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        """Lines, and events to be set when all before them is written."""
        self._thread: threading.Thread | None = None
        # Each is changed by one thread at a time: two with the handler's lock, the others by the writer.
        self._taken_bytes = 0
        self.dropped = 0
        """Lines that were not written."""
        self._done_bytes = 0
        self._shown_dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record over; returns at once. Called with the handler's lock."""
        line = self._line(record)
        if self._descriptor() is None:
            # A stream in memory blocks nothing.
            with suppress(OSError, ValueError):
                self._stream.write(line.decode(self._encoding))
                self._stream.flush()
            return
        if self._taken_bytes - self._done_bytes + len(line) > self._bytes_max:
            self.dropped += 1
            return
        self._taken_bytes += len(line)
        self._waiting.put(line)
        # A forked process has no thread; where none can start, the next record tries again.
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Wait until all is written, for a while."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._waiting.put(written)
            written.wait(_FLUSH_SECONDS)

    def _descriptor(self) -> int | None:
        """Return that of the stream; None: it is in memory, or closed."""
        try:
            return self._stream.fileno()
        except (OSError, ValueError):
            return None

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001  (values of any class; it must not be written to stderr)
            text = f"log_record_lost logger={record.name} error_type={type(error).__name__}"
        return f"{text}\n".encode(self._encoding, "backslashreplace")

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            self._write(item)
            self._done_bytes += len(item)
            dropped = self.dropped
            if dropped > self._shown_dropped:
                line = self._line(_dropped_record(dropped - self._shown_dropped))
                self._shown_dropped = dropped
                self._write(line)

    def _write(self, data: bytes) -> None:
        descriptor = self._descriptor()
        while data and descriptor is not None:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
            except OSError:
                # Closed, or its disk is full: there is no other place to say so.
                return


def _dropped_record(count: int) -> logging.LogRecord:
    fields = {
        "name": __name__,
        "levelno": logging.WARNING,
        "levelname": "WARNING",
        "msg": "log_lines_dropped",
        "count": count,
    }
    return logging.makeLogRecord(fields)
