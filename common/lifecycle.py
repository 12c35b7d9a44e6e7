"""The life of a service process: one event loop, stop signals, an orderly exit with a deadline.

In: the coroutine that serves. The process ends at the deadline even if something is left: a task that cannot
be cancelled, or a thread that the interpreter waits for, would otherwise keep the process alive.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from turnstile.common.exit_codes import ExitCode

logger = logging.getLogger(__name__)

_LEFTOVERS_SECONDS: Final = 10.0
"""For tasks left in the loop after `serve` returned."""
_EXIT_SECONDS: Final = 20.0
"""For threads and exit handlers once the loop is closed: the last traces are sent for 10 s."""
_AT_ONCE_SECONDS: Final = 1.0
"""From the second signal to the end of the process."""
_LOG_SECONDS: Final = 0.2
_SIGNALS_SECONDS: Final = 1.0
"""Between two looks whether the handlers of signals are still the service's."""


def why_not_ready(parts: Mapping[str, str | None]) -> str | None:
    """Join what each part says that cannot be used; None: all can."""
    return "; ".join(f"{part}: {reason}" for part, reason in parts.items() if reason is not None) or None


def run_service(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `serve(stop)` to its end; SIGTERM and SIGINT set `stop`, a second one ends at once.

    The caller then ends the process. Tasks still in the loop after `serve` returned are cancelled; if they or
    threads do not end in time, the process exits with ExitCode.NOT_STOPPED.
    """
    # Our objects live for one message or as long as the process: collect cycles rarely.
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
        deadline.set(_EXIT_SECONDS)


def end_process(log_reason: Callable[[], object], *, seconds: float = _LOG_SECONDS) -> NoReturn:
    """End the process with ExitCode.NOT_STOPPED, after `log_reason` returned or `seconds` passed."""
    try:
        # In a separate thread: what blocks this one may hold the lock of the log.
        logging_thread = threading.Thread(target=log_reason, name="log-reason", daemon=True)
        logging_thread.start()
        logging_thread.join(seconds)
        flush = threading.Thread(target=_flush, name="flush", daemon=True)
        flush.start()
        flush.join(_LOG_SECONDS)
    finally:
        # Also where no thread can start.
        os._exit(ExitCode.NOT_STOPPED)


async def done_before(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run `work` until it is done or `stop` is set; return whether it was done.

    What was interrupted has cleaned up when this returns; what it raises then has no meaning any more.
    """
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
        await asyncio.gather(working, stopping, return_exceptions=True)


class _Deadline:
    """Ends the process at a point in time, unless it has ended by itself."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._is_at_once = False

    def set(self, seconds: float) -> None:
        """Set the deadline, or replace it by a later one, unless the process ends at once."""
        if not self._is_at_once:
            self._start(seconds)

    def end_at_once(self) -> None:
        """Set the earliest deadline; repeatable."""
        if not self._is_at_once:
            self._is_at_once = True
            self._start(_AT_ONCE_SECONDS)

    def _start(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, end_process, args=(_log_not_stopped,))
        self._timer.daemon = True
        self._timer.start()


class _Signals:
    """Calls `on_signal` with the name of each stop signal, also after other code has replaced handlers."""

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        self._on_signal = on_signal
        self._loop = asyncio.get_running_loop()
        self._handlers = {number: self._handled(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._loop.call_later(_SIGNALS_SECONDS, self._look)

    def _handled(self, number: signal.Signals) -> object:
        self._loop.add_signal_handler(number, self._on_signal, number.name)
        return signal.getsignal(number)

    def _look(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                logger.warning("signal_handler_replaced", extra={"signal": number.name})
                self._handlers[number] = self._handled(number)
        self._loop.call_later(_SIGNALS_SECONDS, self._look)


async def _with_signals(
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]], deadline: _Deadline
) -> None:
    stop, served = asyncio.Event(), False
    task = asyncio.current_task()
    assert task is not None

    def on_signal(name: str) -> None:
        if not stop.is_set():
            logger.info("stopping", extra={"signal": name})
            stop.set()
            return
        logger.warning("stopping_at_once", extra={"signal": name})
        if served:
            # `serve` has returned: there is no task to cancel.
            end_process(_log_not_stopped)
        task.cancel()
        deadline.end_at_once()

    _Signals(on_signal)
    try:
        await serve(stop)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        served = True
        deadline.set(_LEFTOVERS_SECONDS)


def _log_not_stopped() -> None:
    logger.critical("not_stopped_in_time", extra={"exit_code": ExitCode.NOT_STOPPED})


def _flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
