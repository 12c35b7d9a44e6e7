"""Formats log lines: a stable event name, then its fields; and summarises failures that repeat.

Code logs `logger.info("event_name", extra={...})`; here it becomes one readable line on a console, or one
JSON object per line. Values may come from outside: a record is always one line without control characters,
and the lines of a traceback begin with a bar.
"""

import json
import logging
import math
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from turnstile.common.redaction import escaped, redact_passwords

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_LIKE_FIELDS: Final = re.compile(r"\s.*=|^\"", re.DOTALL)
"""A value that looks like several fields, or like a quoted one."""
_TRACEBACK_BAR: Final = "  | "
_REPORT_SECONDS: Final = 60.0
_KEPT_MAX: Final = 1000
"""Failures remembered at once; beyond it the one logged longest ago is forgotten."""


def configure_logging(*, level: str, form: Literal["console", "json"]) -> None:
    """Send all log lines of this process to stderr in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # The libraries log each step of a reconnection; our code logs it once.
    for name in ("aio_pika", "aiormq", "asyncio", "asyncpg", "httpx", "httpcore", "alembic"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in ("aiormq", "asyncpg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact_passwords(self._lines(record))

    def _lines(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        source = record.name.removeprefix("turnstile.").split(".")[0]
        line = escaped(f"{at} {record.levelname:<7} {source:<8} {_event(record)}")
        if not record.exc_info:
            return line
        # The message of an exception may come from outside, with any number of lines.
        traceback = escaped(self.formatException(record.exc_info), keep="\n").split("\n")
        return "\n".join([line, *(_TRACEBACK_BAR + each for each in traceback)])


def _event(record: logging.LogRecord) -> str:
    """Return the name of the event and its fields."""
    fields = " ".join(f"{key}={_value(value)}" for key, value in _fields(record).items())
    return f"{record.getMessage()} {fields}".rstrip()


def _value(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if _LIKE_FIELDS.search(text) else text


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        # json.dumps escapes everything but printable ASCII and DEL.
        return redact_passwords(json.dumps(content, default=str)).replace("\x7f", "\\u007f")


@dataclass(slots=True)
class _Episode:
    logged_at: float
    """When the latest line about a failure was written."""
    count: int = 0
    """Failures since that line."""
    is_shown: bool = True
    """The latest line is about a failure, not about its end."""


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
                redact_passwords(escaped(f"{record.levelname} {_event(record)}"))[: self._chars_max]
            )

    def lines(self) -> list[str]:
        """Return what is kept, oldest first: level, event name, fields."""
        return list(self._lines)

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.clear()


class Episodes:
    """Repeated failures, logged at their start, once a minute with a count, and at their end.

    Failures that alternate with successes have at most these two lines a minute.
    """

    def __init__(self, logger: logging.Logger, event: str, *, level: int = logging.WARNING) -> None:
        """`event` names the failures in the log; their end is `<event>_over`."""
        self._logger = logger
        self._event = event
        self._level = level
        self._over = f"{event}_over"
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()

    def failed(self, what: str, /, **fields: object) -> None:
        """Record one failure of `what`."""
        self._record(what, fields, None)

    def failed_times(self, what: str, times: int, /, **fields: object) -> None:
        """Record several failures of `what` at once."""
        self._record(what, fields, None, times)

    def broke(self, what: str, error: BaseException, **fields: object) -> None:
        """Record one failure of `what` that should not happen: its lines have the traceback."""
        self._record(what, fields, error)

    def works(self, what: str, **fields: object) -> None:
        """Record that `what` works; logged if the log shows it as failing."""
        episode = self._episodes.get(what)
        if episode is not None and episode.is_shown:
            self._logger.info(self._over, extra={**fields, "count": episode.count})
            episode.count, episode.is_shown = 0, False

    def all_work(self, **fields: object) -> None:
        """Record that everything works that the log shows as failing."""
        for what in self._episodes:
            self.works(what, **fields)

    def _record(
        self, what: str, fields: Mapping[str, object], error: BaseException | None, times: int = 1
    ) -> None:
        now = time.monotonic()
        episode = self._episodes.get(what)
        if episode is None:
            episode = self._episodes[what] = _Episode(logged_at=-math.inf)
            if len(self._episodes) > _KEPT_MAX:
                self._episodes.popitem(last=False)
        episode.count += times
        if now - episode.logged_at < _REPORT_SECONDS:
            return
        extra = {**fields, "count": episode.count}
        self._logger.log(self._level, self._event, extra=extra, exc_info=error)
        self._episodes.move_to_end(what)
        episode.logged_at, episode.count, episode.is_shown = now, 0, True
