"""Actions that change the process in which they run; `harm.next` is what runs there afterwards."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

from turnstile.worker import Context, action


def _no_trace(*_: object) -> NoReturn:
    raise RuntimeError("no trace")


DEEDS: Final[dict[str, Callable[[], object]]] = {
    "forks": os.fork,
    "closes its streams": lambda: (sys.stdout.close(), sys.stderr.close()),
    "closes descriptors 0 to 2": lambda: os.closerange(0, 3),
    "closes all other descriptors": lambda: os.closerange(3, 4096),
    "has no streams": lambda: vars(sys).update(stdout=None, stderr=None),
    "has streams of another kind": lambda: vars(sys).update(stdout=1, stderr=1),
    "ignores SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "clears its environment": os.environ.clear,
    "has another event loop": lambda: asyncio.set_event_loop(asyncio.new_event_loop()),
    "traces with errors": lambda: sys.settrace(_no_trace),
    "leaves a thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
}


@action("harm.plain")
def plain(how: str) -> int:
    DEEDS[how]()
    return os.getpid()


@action("harm.async")
async def in_loop(how: str) -> int:
    """Return twice if it forks: once before and once after an await."""
    DEEDS[how]()
    await asyncio.sleep(0.01)
    return os.getpid()


@action("harm.thread")
async def in_thread() -> int:
    """Fork in a thread."""
    await asyncio.to_thread(os.fork)
    return os.getpid()


@action("harm.next")
def following(context: Context, number: int) -> int:
    print(f"näxt {number}")
    return number


@action("harm.next.stopped")
def stopped(context: Context) -> None:
    """Run until it is stopped."""
    context.logger.info("it runs")
    while not context.cancelled:
        threading.Event().wait(0.01)
    print("it was stopped")
    context.check_cancelled()


@action("harm.next.async")
async def following_in_loop(number: int) -> int:
    print(f"näxt {number}")
    return number
