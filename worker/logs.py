"""The log of one attempt: bounded, storable in the database, and copied to the worker's log.

In: bytes that a process printed, and records of `Context.logger`. Out: new text, piece by piece while the
attempt runs, and the rest with its end. The records also go to the logger `turnstile.action`, with the fields
`execution_id`, `attempt`, `action_ref`.
"""

import codecs
import contextlib
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from turnstile.common.domain.identifiers import Attempt, ExecutionId

WORKER_LOG: Final = logging.getLogger("turnstile.action")
_TAKEN_END_CHARS_MAX: Final = 4096


def storable(text: str) -> str:
    """Return `text` with what PostgreSQL refuses (U+0000, lone surrogates) replaced."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clipped(text: str, chars_max: int) -> str:
    """Return `text` in storable form, without its middle if it is too long."""
    if len(text) > chars_max:
        text = f"{text[: chars_max * 3 // 4]} [...] {text[-(chars_max // 4 - 7) :]}"
    return storable(text)


class LogPiece(NamedTuple):
    """A part of a log. The stored log is the concatenation of its pieces."""

    start: int
    """How many characters of the log precede it."""
    text: str


class LogTail:
    """What was written and is not stored yet: the last `bytes_max` bytes, and a count of the bytes before.

    May be written to from any thread. A piece that was taken stays the same until it is confirmed, because
    the result of a failed flush is unknown: repeated, it starts at the same character.
    """

    __slots__ = ("_bytes_max", "_cut_bytes", "_kept", "_lock", "_start", "_taken_end", "_unconfirmed")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._cut_bytes = 0
        self._unconfirmed: LogPiece | None = None
        self._start = 0
        self._taken_end = ""

    def write(self, data: bytes) -> None:
        """Add `data`."""
        with self._lock:
            self._kept += data
            # Cut rarely, so that many small writes do not move the whole buffer each time.
            if len(self._kept) > 2 * self._bytes_max:
                self._cut()

    def write_line(self, line: str) -> None:
        """Add a line of text."""
        self.write(line.encode("utf-8", "replace") + b"\n")

    def take(self) -> LogPiece | None:
        """Return the next piece, the same one until it is confirmed; None if there is nothing new."""
        with self._lock:
            if self._unconfirmed is None:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                text = self._text(decoder.decode)
                if not text:
                    return None
                self._unconfirmed = LogPiece(start=self._start, text=text)
                self._start += len(text)
                self._taken_end = (self._taken_end + text)[-_TAKEN_END_CHARS_MAX:]
                # An incomplete character stays for the next piece.
                self._kept, self._cut_bytes = bytearray(decoder.getstate()[0]), 0
            return self._unconfirmed

    def confirm(self) -> None:
        """Note that the piece is stored."""
        with self._lock:
            self._unconfirmed = None

    def rest(self) -> LogPiece:
        """Return everything that is not confirmed as stored, whether or not it was taken."""
        with self._lock:
            text = self._text(_decode)
            if self._unconfirmed is None:
                return LogPiece(start=self._start, text=text)
            return LogPiece(start=self._unconfirmed.start, text=self._unconfirmed.text + text)

    def end(self, chars_max: int) -> str:
        """Return the last characters written, at most 4096 of them from pieces that were taken."""
        with self._lock:
            text = self._text(_decode)
            return (self._taken_end + text)[-chars_max:]

    def _text(self, decode: Callable[[bytes], str]) -> str:
        if not self._kept and not self._cut_bytes:
            return ""
        self._cut()
        text = storable(decode(bytes(self._kept)))
        return f"[{self._cut_bytes} bytes before this were cut]\n{text}" if self._cut_bytes else text

    def _cut(self) -> None:
        too_many = len(self._kept) - self._bytes_max
        if too_many > 0:
            del self._kept[:too_many]
            self._cut_bytes += too_many


def _decode(kept: bytes) -> str:
    return kept.decode("utf-8", "replace")


printed_to: Final[ContextVar[LogTail | None]] = ContextVar("printed_to", default=None)
"""The log of the attempt whose action runs here; the tasks and threads that it starts inherit it."""


class _RoutedStream(io.TextIOBase):
    """Standard output or error: what an action prints goes to the log of its attempt."""

    def __init__(self, former: Any) -> None:
        self._former = former

    def __getattr__(self, name: str) -> Any:
        return getattr(self._former, name)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        log = printed_to.get()
        if log is None:
            return int(self._former.write(text))
        log.write(text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        self._former.flush()


@contextlib.contextmanager
def printing_into_logs() -> Iterator[None]:
    """Send what actions print in this process to the logs of their attempts, and all else where it went."""
    with (
        contextlib.redirect_stdout(_RoutedStream(sys.stdout)),
        contextlib.redirect_stderr(_RoutedStream(sys.stderr)),
    ):
        yield


def line_formatter(pattern: str) -> logging.Formatter:
    """Return a formatter that writes the time in UTC before `pattern`."""
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {pattern}", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


_FORMATTER: Final = line_formatter("%(levelname)s %(message)s")


class _AttemptLogHandler(logging.Handler):
    """Writes each record to the attempt's log, and passes it on to the worker's log."""

    def __init__(self, *, write_line: Callable[[str], None], pass_on: Callable[[int, str], None]) -> None:
        super().__init__()
        self.setFormatter(_FORMATTER)
        self._write_line = write_line
        self._pass_on = pass_on

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`; its traceback goes only to the attempt's log."""
        self._write_line(self.format(record))
        self._pass_on(record.levelno, record.getMessage())


def attempt_logger(
    action_ref: str, *, write_line: Callable[[str], None], pass_on: Callable[[int, str], None]
) -> logging.Logger:
    """Return a logger for one attempt; it is not registered by name, so it is freed with the attempt."""
    level = min(logging.INFO, WORKER_LOG.getEffectiveLevel())
    logger = logging.Logger(action_ref, level)  # noqa: LOG001
    logger.addHandler(_AttemptLogHandler(write_line=write_line, pass_on=pass_on))
    return logger


def log_in_worker(
    level: int, message: str, *, execution_id: ExecutionId, attempt: Attempt, action_ref: str
) -> None:
    """Write a line of an attempt to the worker's log."""
    fields = {"execution_id": execution_id, "attempt": attempt, "action_ref": action_ref}
    WORKER_LOG.log(level, "%s", storable(message), extra=fields)
