"""Notices that an action blocks the event loop, and names it, the location, and for how long.

In: a beat of the event loop, and the stack of its thread. Out: a log line while it is blocked and one when it
is over, at most once a minute for each location; lines in the log of the execution, each time; and a metric.
A blocked loop delays every other async action of the process; the lease has a thread of its own. So a loop
that does not turn for longer than any action may block it ends the process: a worker that renews its lease
and can run nothing would hold its slots for good. Code that holds the interpreter's lock is found afterwards.
"""

import asyncio
import logging
import selectors
import sys
import threading
from asyncio import base_events, runners
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Final

from turnstile.common.exit_codes import ExitCode
from turnstile.common.lifecycle import end_process
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.code_location import is_of_user, shown_location
from turnstile.worker.metrics import LOOP_BLOCKED, METER
from turnstile.worker.runners.in_loop import InLoopRun, InLoopRunner, Run

logger = logging.getLogger(__name__)

_BEAT_SECONDS: Final = 0.2
_BLOCKED_SECONDS: Final = 1.0
"""A loop without a beat for so long is blocked."""
_LOOP_FILES: Final = frozenset({base_events.__file__, runners.__file__})
"""The frames of an event loop; those of uvloop are not Python's."""
_STOOD_STILL: Final = "unknown: the whole process stood still, by a pause or by code without Python"


@dataclass(frozen=True, slots=True)
class _Blocked:
    """What blocks the event loop."""

    location: str
    run: InLoopRun | None = None

    @property
    def fields(self) -> dict[str, object]:
        run = self.run
        if run is None:
            return {"location": self.location}
        attempt = {"execution_id": run.execution_id, "attempt": run.attempt, "action_ref": run.action_ref}
        return {"location": self.location, **attempt}


class LoopWatch:
    """Watches the event loop in which it was created."""

    def __init__(self, runner: InLoopRunner, *, blocked_seconds_max: float) -> None:
        self._runner = runner
        self._blocked_seconds_max = blocked_seconds_max
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beat_at = monotonic()
        self._noticed: _Blocked | None = None
        """What blocks it, once that was noticed; None while nothing does."""
        self._episodes = Episodes(logger, "event_loop_blocked")
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the block."""
        beat = self._loop.call_later(_BEAT_SECONDS, self._beat)
        thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
        thread.start()
        self._runner.on_end = self._run_ended
        try:
            with self._runner.owning_tasks():
                yield
        finally:
            self._ended.set()
            thread.join()
            beat.cancel()

    def _beat(self) -> None:
        blocked_seconds = self._blocked_seconds()
        if blocked_seconds >= _BLOCKED_SECONDS:
            self._over(blocked_seconds)
        self._noticed, self._beat_at = None, monotonic()
        if not self._ended.is_set():
            self._loop.call_later(_BEAT_SECONDS, self._beat)

    def _blocked_seconds(self) -> float:
        """Return for how long the beat is late."""
        return monotonic() - self._beat_at - _BEAT_SECONDS

    def _watch(self) -> None:
        # Looks, not a clock: while the whole process is paused, nothing is missed.
        beat_at, looks = self._beat_at, 0
        while not self._ended.wait(_BEAT_SECONDS):
            if self._noticed is None and self._blocked_seconds() >= _BLOCKED_SECONDS:
                self._notice()
            beat_at, looks = self._beat_at, looks + 1 if beat_at == self._beat_at else 0
            if looks * _BEAT_SECONDS >= self._blocked_seconds_max:
                end_process(self._log_hung)

    def _log_hung(self) -> None:
        fields = {} if self._noticed is None else self._noticed.fields
        seconds = {"seconds": round(self._blocked_seconds(), 1), "exit_code": ExitCode.NOT_STOPPED}
        logger.critical("event_loop_hung", extra=fields | seconds)

    def _notice(self) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._thread_id)
        location = None if frame is None else _location_in(frame, in_task=task is not None)
        if location is None:
            # It waits, as after a pause of the whole process: `_over` says so.
            return
        run = None if task is None else self._runner.run_of(task)
        self._noticed = blocked = _Blocked(location, run)
        LOOP_BLOCKED.add("other" if run is None else METER.action_refs[run.action_ref])
        if run is not None:
            run.log.write_line(
                f"The event loop of the worker is blocked at {location}. Other executions wait. "
                "Await what takes long, or declare a plain 'def', which runs in a process of its own."
            )
        self._episodes.failed(location, **blocked.fields)

    def _over(self, blocked_seconds: float) -> None:
        blocked = self._noticed
        if blocked is None:
            blocked = _Blocked(_STOOD_STILL)
            LOOP_BLOCKED.add("other")
            self._episodes.failed(_STOOD_STILL, **blocked.fields)
        elif blocked.run is not None:
            _write_end(blocked, blocked_seconds)
        self._episodes.works(blocked.location, **blocked.fields, seconds=round(blocked_seconds, 1))

    def _run_ended(self, run: Run) -> None:
        """Write the end to the log of an attempt that blocked to its own end, before the log is closed."""
        blocked = self._noticed
        if (
            blocked is not None
            and blocked.run is not None
            and run == (blocked.run.execution_id, blocked.run.attempt)
        ):
            _write_end(blocked, self._blocked_seconds())


def _write_end(blocked: _Blocked, seconds: float) -> None:
    assert blocked.run is not None
    blocked.run.log.write_line(f"The event loop was blocked for {seconds:.1f} s at {blocked.location}.")


def _location_in(frame: FrameType, *, in_task: bool) -> str | None:
    """Return the innermost location of the user's code in a step of the event loop, else the innermost one.

    None if the event loop waits for something to do.
    """
    if not in_task and frame.f_code.co_filename in (_LOOP_FILES | {selectors.__file__}):
        return None
    here: FrameType | None = frame
    # Below the event loop is the program that runs it.
    while here is not None and here.f_code.co_filename not in _LOOP_FILES:
        if is_of_user(here.f_code):
            return shown_location(here.f_code, here.f_lineno)
        here = here.f_back
    return shown_location(frame.f_code, frame.f_lineno)
