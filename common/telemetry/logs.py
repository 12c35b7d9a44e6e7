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
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from weakref import WeakSet

from turnstile.common.redaction import escaped, redact_passwords
from turnstile.common.telemetry.log_sink import LogSink

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
_QUIET_SECONDS: Final = 60.0
"""A failure that was not seen for so long has ended."""
_SWEEP_SECONDS: Final = 5.0
_KEPT_MAX: Final = 100
"""Failures that one `Episodes` tells apart at once; further ones share their lines."""
_OTHERS: Final = "\0others"


def configure_logging(*, level: str, form: Literal["console", "json"]) -> None:
    """Send all log lines of this process to stderr in the given form, without waiting for it."""
    handler = LogSink(sys.stderr)
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
        line = escaped(f"{at} {record.levelname:<7} {source:<8} {event_text(record)}")
        if not record.exc_info:
            return line
        # The message of an exception may come from outside, with any number of lines.
        traceback = escaped(self.formatException(record.exc_info), keep="\n").split("\n")
        return "\n".join([line, *(_TRACEBACK_BAR + each for each in traceback)])


def event_text(record: logging.LogRecord) -> str:
    """Return the name of the event and its fields in one line, neither escaped nor without passwords."""
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


class _Line(NamedTuple):
    level: int
    event: str
    fields: dict[str, object]


@dataclass(slots=True)
class _Episode:
    logged_at: float = -math.inf
    """When the latest line about a failure was written."""
    failed_at: float = -math.inf
    fields: Mapping[str, object] = field(default_factory=dict)
    """Those of the latest failure."""
    count: int = 0
    """Failures since that line."""
    is_failing: bool = False
    is_shown: bool = False
    """The latest line is about a failure, not about its end."""
    is_repeated: bool = False
    """It failed more than once since it is shown."""

    def fail(self, now: float, times: int, fields: Mapping[str, object]) -> None:
        self.failed_at, self.fields, self.is_failing = now, fields, True
        self.count += times
        self.is_repeated = self.is_shown or times > 1

    def show(self, now: float) -> dict[str, object]:
        """Note that a line about a failure is written; return its fields."""
        fields = {**self.fields, "count": self.count}
        self.logged_at, self.count, self.is_shown = now, 0, True
        return fields

    def end(self) -> int | None:
        """Note that it works; return the count for the line about it, None for no line."""
        count = self.count if self.is_shown else None
        self.is_failing = self.is_shown = self.is_repeated = False
        if count is not None:
            self.count = 0
        return count


class Episodes:
    """Repeated failures, logged at their start, once a minute with a count, and at their end.

    An episode ends when its caller reports that it works. If no failure was seen for a minute, it ends by
    itself, so that no count is lost; the line then has `quiet_seconds`. A failure that did not repeat has
    only its own line. Failures that alternate with successes have at most these two lines a minute. May be
    called from any thread.
    """

    def __init__(
        self, logger: logging.Logger, event: str, *, level: int = logging.WARNING, lasting: bool = False
    ) -> None:
        """`event` names the failures in the log; their end is `<event>_over`.

        `lasting`: a state that lasts until `works` is called, even if nothing tries it for a minute.
        """
        self._logger = logger
        self._event = event
        self._level = level
        self._lasting = lasting
        self._over = f"{event}_over"
        self._episodes: dict[str, _Episode] = {}
        _SWEEPER.add(self)

    def failed(self, what: str, /, **fields: object) -> None:
        """Record one failure of `what`."""
        self._record(what, fields, None)

    def broke(self, what: str, error: BaseException, /, **fields: object) -> None:
        """Record one failure of `what` that should not happen: its lines have the traceback."""
        self._record(what, fields, error)

    def works(self, what: str, /, **fields: object) -> None:
        """Record that `what` works; logged if the log shows it as failing."""
        # Called for each success: without the lock while nothing fails.
        episode = self._episodes.get(what)
        if episode is None or not episode.is_failing:
            return
        with _SWEEPER.lock:
            count = episode.end()
        if count is not None:
            self._logger.info(self._over, extra={**fields, "count": count})

    def all_work(self, **fields: object) -> None:
        """Record that everything works that the log shows as failing."""
        for what in list(self._episodes):
            self.works(what, **fields)

    def _record(
        self, what: str, fields: Mapping[str, object], error: BaseException | None, times: int = 1
    ) -> None:
        now = time.monotonic()
        with _SWEEPER.lock:
            if what not in self._episodes and len(self._episodes) >= _KEPT_MAX:
                what, fields = _OTHERS, {**fields, "others": True}
            episode = self._episodes.setdefault(what, _Episode())
            episode.fail(now, times, fields)
            is_due = now - episode.logged_at >= _REPORT_SECONDS
            shown = episode.show(now) if is_due else None
            _SWEEPER.start()
        if shown is not None:
            self._logger.log(self._level, self._event, extra=shown, exc_info=error)

    def sweep(self, now: float) -> Iterator[tuple[logging.Logger, _Line]]:
        """Forget what is quiet, and yield the lines about it; called by the sweeper."""
        for what, episode in list(self._episodes.items()):
            if self._lasting and episode.is_failing:
                if not episode.is_shown and now - episode.logged_at >= _REPORT_SECONDS:
                    yield self._logger, _Line(self._level, self._event, episode.show(now))
            elif now - max(episode.failed_at, episode.logged_at) >= _QUIET_SECONDS:
                del self._episodes[what]
                if episode.count or episode.is_repeated:
                    quiet = {"count": episode.count, "quiet_seconds": round(now - episode.failed_at)}
                    yield self._logger, _Line(logging.INFO, self._over, {**episode.fields, **quiet})

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to sweep."""
        return not self._episodes


class _Sweeper:
    """Ends quiet episodes, in a thread that runs while there are any episodes."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run any code while it is held.
        self.lock = threading.RLock()
        self._all: WeakSet[Episodes] = WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, episodes: Episodes) -> None:
        with self.lock:
            self._all.add(episodes)

    def start(self) -> None:
        """Start the thread unless it runs; called with the lock. A forked process has none."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="quiet-episodes", daemon=True)
            # Where no thread can start, the next failure tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def sweep(self) -> bool:
        """End what is quiet; return whether episodes are left."""
        now = time.monotonic()
        with self.lock:
            lines = [line for episodes in self._all for line in episodes.sweep(now)]
            is_any_left = any(not episodes.is_empty for episodes in self._all)
            if not is_any_left:
                self._thread = None
        for logger, (level, event, fields) in lines:
            logger.log(level, event, extra=fields)
        return is_any_left

    def _run(self) -> None:
        pause = threading.Event()
        while self.sweep():
            pause.wait(_SWEEP_SECONDS)


_SWEEPER: Final = _Sweeper()
