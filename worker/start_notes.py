"""Keeps what a worker warned of while it started: the leader shows it beside the worker.

In: log records. Out: lines without an instant, bounded in number and length, and safe to show.
"""

import logging

from turnstile.common.redaction import escaped, redact_passwords
from turnstile.common.telemetry.logs import event_text


class WarningRecorder(logging.Handler):
    """Keeps the first warnings and errors of this process, as lines without an instant."""

    def __init__(self, *, lines_max: int = 50, chars_max: int = 500) -> None:
        """Keep at most `lines_max` lines, each cut to `chars_max` characters."""
        super().__init__(logging.WARNING)
        self._lines_max = lines_max
        self._chars_max = chars_max
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, if there is room."""
        if len(self._lines) < self._lines_max:
            self._lines.append(
                redact_passwords(escaped(f"{record.levelname} {event_text(record)}"))[: self._chars_max]
            )

    def lines(self) -> list[str]:
        """Return what is kept, oldest first: level, event name, fields."""
        return list(self._lines)

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.clear()
