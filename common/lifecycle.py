"""How a service process lives: one event loop, one stop signal, an orderly end with a deadline."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def run_service(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `serve(stop)` to its end; SIGTERM and SIGINT set `stop`, a second one ends at once."""
    # Our objects live for one message or for ever: look for cycles rarely.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        asyncio.run(_with_signals(serve))
    else:
        uvloop.run(_with_signals(serve))


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


async def _with_signals(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal(name: str) -> None:
        if stop.is_set():
            logger.warning("stopping_at_once", extra={"signal": name})
            task.cancel()
        else:
            logger.info("stopping", extra={"signal": name})
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await serve(stop)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
