"""Ends in order whatever keeps servers, when somebody asks for its end.

In: work that tidies up when it is cancelled. Out: its result, or the exit code of the signal that ended it.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(
    work: Coroutine[Any, Any, int], *, say: Callable[[str], object], code_when_told: int | None = None
) -> int:
    """Run `work` to its end, or until Ctrl-C, SIGTERM or SIGHUP; either way it tidies up to the end.

    A signal's exit code is `code_when_told`, or 128 and its number where that is None.
    """
    task = asyncio.create_task(work, name="work")
    told: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if not told:
            say("Stopping")
            task.cancel()
        told.append(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not told:
            # Our output was closed: `rich` ends the process with SystemExit, and that cancels us.
            raise
        return 128 + told[0] if code_when_told is None else code_when_told
