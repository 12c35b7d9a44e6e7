"""How far an attempt says that it has come: checked, and thinned out in child processes.

In: calls of `Context.progress`, from any thread. Out: values for `ProgressWriter`. Child processes
import this module, so it imports no database.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from turnstile.worker.logs import clipped

_MESSAGE_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `total`, in units of the action's own; without `total` it is a count."""

    done: float
    total: float | None = None
    message: str | None = None


def checked_progress(done: object, total: object = None, message: object = None) -> Progress:
    """Return a progress; raises TypeError or ValueError, which name the argument. A long message is cut."""
    return Progress(
        done=_amount("done", done),
        total=None if total is None else _amount("total", total),
        message=None if message is None else clipped(str(message), _MESSAGE_CHARS_MAX),
    )


def _amount(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"progress: {name}: expected a number, got {type(value).__name__}")
    try:
        amount = float(value)
    except OverflowError:
        amount = math.inf
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"progress: {name}: expected a number from 0 on, got {value!r:.60}")
    return amount


class Throttle:
    """Passes on the newest progress at once, or when the interval since the one before is over.

    Nothing is passed on after `close`: a thread may outlive its run.
    """

    def __init__(self, pass_on: Callable[[Progress], None], *, interval_seconds: float) -> None:
        self._pass_on = pass_on
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._passed_at = -math.inf
        self._kept: Progress | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def put(self, progress: Progress) -> None:
        """Take a progress, from any thread."""
        with self._lock:
            if self._closed:
                return
            rest_seconds = self._passed_at + self._interval_seconds - monotonic()
            if rest_seconds <= 0 and self._timer is None:
                self._passed_at = monotonic()
                self._pass_on(progress)
                return
            self._kept = progress
            if self._timer is None:
                self._timer = threading.Timer(max(rest_seconds, 0.0), self._flush)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Pass on what is kept, and nothing more."""
        self._flush()
        self._closed = True

    def _flush(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            kept, self._kept = self._kept, None
            if kept is not None and not self._closed:
                self._passed_at = monotonic()
                self._pass_on(kept)
