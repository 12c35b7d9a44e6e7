"""The log of one attempt: bounded, fit for the database, and seen in the worker's log too.

In: bytes that a process printed, records of `Context.logger`. Out: the last part of it as text, kept in the
attempt's row; the records also on the logger `worker.action`, with `execution_id`, `attempt`, `action_ref`.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from common.domain.identifiers import Attempt, ExecutionId

WORKER_LOG: Final = logging.getLogger("worker.action")


def storable(text: str) -> str:
    """Return `text` without what PostgreSQL refuses: U+0000 and lone surrogates become replacements."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clipped(text: str, chars_max: int) -> str:
    """Return `text` in storable form, its middle cut out if it is too long."""
    if len(text) > chars_max:
        text = f"{text[: chars_max * 3 // 4]} [...] {text[-(chars_max // 4 - 7) :]}"
    return storable(text)


class LogTail:
    """Keeps the last `bytes_max` bytes written to it, and counts the rest."""

    __slots__ = ("_bytes_max", "_kept", "_total")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._total = 0

    def write(self, data: bytes) -> None:
        """Add `data`."""
        self._total += len(data)
        self._kept += data
        # Cut rarely, so that many small writes do not move the whole buffer each time.
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max]

    def write_line(self, line: str) -> None:
        """Add a line of text."""
        self.write(line.encode("utf-8", "replace") + b"\n")

    def text(self) -> str:
        """Return what was kept, with a first line that says how much was cut, if any was."""
        kept = bytes(self._kept[-self._bytes_max :])
        cut_bytes = self._total - len(kept)
        text = storable(kept.decode("utf-8", "replace"))
        return f"[{cut_bytes} bytes before this were cut]\n{text}" if cut_bytes else text


def line_formatter(pattern: str) -> logging.Formatter:
    """Return a formatter of `pattern` behind the time in UTC."""
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {pattern}", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


_FORMATTER: Final = line_formatter("%(levelname)s %(message)s")


class AttemptLogHandler(logging.Handler):
    """Writes each record as a line of the attempt's log and passes it on to the worker's."""

    def __init__(self, *, write_line: Callable[[str], None], pass_on: Callable[[int, str], None]) -> None:
        super().__init__()
        self.setFormatter(_FORMATTER)
        self._write_line = write_line
        self._pass_on = pass_on

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`; its traceback stays in the attempt's log."""
        self._write_line(self.format(record))
        self._pass_on(record.levelno, record.getMessage())


def attempt_logger(
    action_ref: str, *, write_line: Callable[[str], None], pass_on: Callable[[int, str], None]
) -> logging.Logger:
    """Return a logger for one attempt: never registered by name, so it goes when the attempt goes."""
    level = min(logging.INFO, WORKER_LOG.getEffectiveLevel())
    logger = logging.Logger(action_ref, level)  # noqa: LOG001
    logger.addHandler(AttemptLogHandler(write_line=write_line, pass_on=pass_on))
    return logger


def log_in_worker(
    level: int, message: str, *, execution_id: ExecutionId, attempt: Attempt, action_ref: str
) -> None:
    """Put a line of an attempt into the worker's log."""
    fields = {"execution_id": execution_id, "attempt": attempt, "action_ref": action_ref}
    WORKER_LOG.log(level, "%s", storable(message), extra=fields)
