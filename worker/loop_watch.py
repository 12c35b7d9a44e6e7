"""Notices that an action blocks the event loop, and names it, the place, and for how long.

In: a beat of the event loop, and the stack of its thread. Out: a log line while it is blocked and one when it
is over, a line in the log of the execution, and a metric. A blocked loop delays every other async action of
the process; the lease has a thread of its own. Code that holds the interpreter's lock is found afterwards.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Final

from turnstile.worker.metrics import LOOP_BLOCKED, METER
from turnstile.worker.places import is_of_user, shown_place
from turnstile.worker.runners.in_loop import InLoopRun, InLoopRunner

logger = logging.getLogger(__name__)

_BEAT_SECONDS: Final = 0.2
_BLOCKED_SECONDS: Final = 1.0
"""A loop without a beat for so long is blocked."""
_REPEAT_SECONDS: Final = 60.0
"""The same place is logged once in this time, with the number of times."""


@dataclass(slots=True)
class _Place:
    logged_at: float = float("-inf")
    times: int = 0


class LoopWatch:
    """Watches the event loop in which it was created."""

    def __init__(self, runner: InLoopRunner) -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beat_at = monotonic()
        self._noticed: str | None = None
        """Where it is blocked, once that was noticed; None while it is not."""
        self._places: dict[str, _Place] = {}
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the block."""
        beat = self._loop.call_later(_BEAT_SECONDS, self._beat)
        thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            beat.cancel()

    def _beat(self) -> None:
        now = monotonic()
        blocked_seconds = now - self._beat_at - _BEAT_SECONDS
        if blocked_seconds >= _BLOCKED_SECONDS:
            self._over(blocked_seconds)
        self._noticed, self._beat_at = None, now
        if not self._ended.is_set():
            self._loop.call_later(_BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            if self._noticed is None and monotonic() - self._beat_at - _BEAT_SECONDS >= _BLOCKED_SECONDS:
                self._notice()

    def _notice(self) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._thread_id)
        if task is None or frame is None:
            # It waits, as after a pause of the whole process: `_over` says so.
            return
        place = _place_in(frame)
        run = self._runner.run_of(task.get_name())
        self._noticed = place
        LOOP_BLOCKED.add("other" if run is None else METER.action_refs[run.action_ref])
        if run is not None:
            run.log.write_line(
                f"The event loop of the worker is blocked at {place}. Other executions wait. "
                "Await what takes long, or declare a plain 'def', which runs in a process of its own."
            )
        known = self._places.setdefault(place, _Place())
        known.times += 1
        if monotonic() - known.logged_at >= _REPEAT_SECONDS:
            logger.warning("event_loop_blocked", extra=_fields(place, run) | {"times": known.times})
            known.logged_at, known.times = monotonic(), 0

    def _over(self, blocked_seconds: float) -> None:
        place = self._noticed
        if place is None:
            place = "unknown: the whole process stood still, by a pause or by code without Python"
            LOOP_BLOCKED.add("other")
        known = self._places.setdefault(place, _Place())
        # Beside the first line of a place, or where there was none.
        if known.times == 0 or self._noticed is None:
            fields = {"place": place, "seconds": round(blocked_seconds, 1)}
            logger.warning("event_loop_blocked_over", extra=fields)


def _place_in(frame: FrameType) -> str:
    """Return the innermost place of the user's code, else the innermost one."""
    here: FrameType | None = frame
    while here is not None:
        if is_of_user(here.f_code):
            return shown_place(here.f_code, here.f_lineno)
        here = here.f_back
    return shown_place(frame.f_code, frame.f_lineno)


def _fields(place: str, run: InLoopRun | None) -> dict[str, object]:
    fields: dict[str, object] = {"place": place}
    if run is not None:
        fields |= {"action_ref": run.action_ref, "execution_id": run.execution_id, "attempt": run.attempt}
    return fields
