"""The actions of the stress test (`worker serve --actions turnstile.stress.actions`): they sleep.

Each run records its start and stop: in a trace file in the folder `TURNSTILE_STRESS_TRACES`, or without one
in its result, so that workers on other hosts can be measured too. All actions share one function;
`TURNSTILE_STRESS_ACTIONS` is their number.
"""

import asyncio
import os
import time
from functools import cache
from pathlib import Path

from turnstile import Context, action
from turnstile.stress.trace import (
    ACTIONS_DEFAULT,
    ACTIONS_VARIABLE,
    POOL,
    START,
    STOP,
    TRACE_VARIABLE,
    TraceWriter,
    action_ref,
    boot_id,
)


async def run(
    context: Context, number: int, milliseconds: float, scenario: str = ""
) -> dict[str, object] | None:
    """Sleep; `scenario` is the token of the scenario that sent the request."""
    del scenario
    writer = _writer()
    if writer is None:
        return await _reported(milliseconds)
    writer.write(START, number, context.execution_id, context.attempt)
    try:
        await _sleep(milliseconds)
    finally:
        # Also on cancellation: a cancelled run has stopped.
        writer.write(STOP, number, context.execution_id, context.attempt)
    return None


async def _reported(milliseconds: float) -> dict[str, object]:
    started = time.monotonic_ns()
    await _sleep(milliseconds)
    return {
        "boot": boot_id(),
        "process": os.getpid(),
        "offset": time.time_ns() - time.monotonic_ns(),
        "started": started,
        "stopped": time.monotonic_ns(),
    }


async def _sleep(milliseconds: float) -> None:
    if milliseconds > 0:
        await asyncio.sleep(milliseconds / 1000)


@cache
def _writer() -> TraceWriter | None:
    # At the first run, not on import: worker processes that run no action must not create a file.
    folder = os.environ.get(TRACE_VARIABLE)
    return TraceWriter(Path(folder)) if folder else None


def _count() -> int:
    text = os.environ.get(ACTIONS_VARIABLE, str(ACTIONS_DEFAULT))
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError(f"{ACTIONS_VARIABLE}: {text[:60]!r} is not a number of actions, from 1 on")
    return int(text)


for _number in range(_count()):
    action(action_ref(_number), pool=POOL)(run)
