"""How a service process lives: one event loop, one stop signal, an orderly end with a deadline.

In: what serves. Out: no process, whatever was left running in the loop: a task that cannot be cancelled, or a
thread that it waits for, would otherwise hold the loop open for ever.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NoReturn

logger = logging.getLogger(__name__)

EXIT_NOT_STOPPED: Final = 70
"""The exit code of a process that could not stop what it ran: EX_SOFTWARE of sysexits.h."""
_LEFTOVERS_SECONDS: Final = 10.0
"""For what `serve` left in the loop, after its end."""
_AT_ONCE_SECONDS: Final = 1.0
"""From the second signal to the end of the process, in order or not."""
_LAST_WORDS_SECONDS: Final = 0.2


def run_service(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `serve(stop)` to its end; SIGTERM and SIGINT set `stop`, a second one ends at once.

    What is still in the loop when `serve` has returned is cancelled; if it does not end in time, the process
    does, with EXIT_NOT_STOPPED.
    """
    # Our objects live for one message or for ever: look for cycles rarely.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    deadline = _Deadline()
    try:
        try:
            import uvloop  # noqa: PLC0415  (not on every platform)
        except ImportError:
            asyncio.run(_with_signals(serve, deadline))
        else:
            uvloop.run(_with_signals(serve, deadline))
    finally:
        deadline.lift()


def end_process(last_words: Callable[[], object], *, seconds: float = _LAST_WORDS_SECONDS) -> NoReturn:
    """End the process at once with EXIT_NOT_STOPPED, after `last_words`, or without them when time is up."""
    # Said by a thread of its own: whatever blocks this one may hold the log's lock.
    words = threading.Thread(target=last_words, name="last-words", daemon=True)
    words.start()
    words.join(seconds)
    flush = threading.Thread(target=_flush, name="flush", daemon=True)
    flush.start()
    flush.join(_LAST_WORDS_SECONDS)
    os._exit(EXIT_NOT_STOPPED)


async def done_before(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run `work` until it is done or `stop` is set, whichever is first; tell whether it was done."""
    working = asyncio.create_task(work, name="until-stopped")
    stopping = asyncio.create_task(stop.wait(), name="stop-signal")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        stopping.cancel()


class _Deadline:
    """Ends the process at an instant, unless that is lifted before."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Set it, unless it is set: an earlier word is a sooner end."""
        if self._timer is not None:
            return
        self._timer = threading.Timer(seconds, end_process, args=(_say_not_stopped,))
        self._timer.daemon = True
        self._timer.start()

    def lift(self) -> None:
        """Set none."""
        if self._timer is not None:
            self._timer.cancel()


async def _with_signals(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]], deadline: _Deadline
) -> None:
    stop, served = asyncio.Event(), False
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal(name: str) -> None:
        if not stop.is_set():
            logger.info("stopping", extra={"signal": name})
            stop.set()
            return
        logger.warning("stopping_at_once", extra={"signal": name})
        if served:
            # There is no task left to cancel.
            end_process(_say_not_stopped)
        task.cancel()
        deadline.set(_AT_ONCE_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await serve(stop)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        served = True
        deadline.set(_LEFTOVERS_SECONDS)


def _say_not_stopped() -> None:
    logger.critical("not_stopped_in_time", extra={"exit_code": EXIT_NOT_STOPPED})


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
