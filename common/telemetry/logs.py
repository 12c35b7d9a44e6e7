"""The one place where log lines get their form: a stable event name, then its fields.

Code logs `logger.info("event_name", extra={...})`; here it becomes one readable line on a console, or one
JSON object per line. Values may come from strangers: whatever they hold, a record is one line, and a
traceback is told from lines of ours by the bar in front.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, Literal

from turnstile.common.passwords import without_passwords
from turnstile.common.terminal_text import escaped

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_LIKE_FIELDS: Final = re.compile(r"\s.*=|^\"", re.DOTALL)
"""A value that could be read as several fields, or as quoted."""
_TRACEBACK_BAR: Final = "  | "


def configure_logging(*, level: str, form: Literal["console", "json"]) -> None:
    """Send all log lines of this process to stderr in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # The libraries narrate their own reconnections; ours say it once.
    for name in ("aio_pika", "aiormq", "asyncio", "asyncpg", "httpx", "httpcore", "alembic"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in ("aiormq", "asyncpg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(self._lines(record))

    def _lines(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{key}={_value(value)}" for key, value in _fields(record).items())
        source = record.name.split(".")[0]
        line = escaped(f"{at} {record.levelname:<7} {source:<8} {record.getMessage()} {fields}".rstrip())
        if not record.exc_info:
            return line
        # The message of an exception may be a stranger's, of any number of lines.
        traceback = escaped(self.formatException(record.exc_info), keep="\n").split("\n")
        return "\n".join([line, *(_TRACEBACK_BAR + each for each in traceback)])


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
        # Escapes all but ASCII, and of that the control characters, but for the last one.
        return without_passwords(json.dumps(content, default=str)).replace("\x7f", "\\u007f")
