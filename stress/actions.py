"""The actions of the harness (`worker serve --actions turnstile.stress.actions`): they sleep, and say when.

In: the number of an order, how long to sleep, the token of its stage. Out: a mark at its start and one at its
stop, in the folder `TURNSTILE_STRESS_MARKS`; without one, both instants in the result, so that workers on
other hosts can be measured too. All actions are one function: `TURNSTILE_STRESS_ACTIONS` says how many.
"""

import asyncio
import os
import time
from functools import cache
from pathlib import Path
from typing import Final

from turnstile import Context, action
from turnstile.stress.marks import START, STOP, MarkWriter
from turnstile.stress.names import ACTIONS_DEFAULT, ACTIONS_VARIABLE, MARKS_VARIABLE, POOL, action_ref

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


async def run(
    context: Context, number: int, milliseconds: float, stage: str = ""
) -> dict[str, object] | None:
    """Sleep; `stage` only names the run that asked for it."""
    del stage
    writer = _writer()
    if writer is None:
        return await _told(milliseconds)
    writer.mark(START, number, context.execution_id, context.attempt)
    try:
        await _sleep(milliseconds)
    finally:
        # Also when it is cancelled: a run that was stopped has stopped.
        writer.mark(STOP, number, context.execution_id, context.attempt)
    return None


async def _told(milliseconds: float) -> dict[str, object]:
    started = time.monotonic_ns()
    await _sleep(milliseconds)
    return {
        "boot": _boot_id(),
        "process": os.getpid(),
        "offset": time.time_ns() - time.monotonic_ns(),
        "started": started,
        "stopped": time.monotonic_ns(),
    }


async def _sleep(milliseconds: float) -> None:
    if milliseconds > 0:
        await asyncio.sleep(milliseconds / 1000)


@cache
def _writer() -> MarkWriter | None:
    # At the first run and not at the import: the processes of a worker that run none must leave no file.
    folder = os.environ.get(MARKS_VARIABLE)
    return MarkWriter(Path(folder)) if folder else None


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _count() -> int:
    text = os.environ.get(ACTIONS_VARIABLE, str(ACTIONS_DEFAULT))
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError(f"{ACTIONS_VARIABLE}: {text[:60]!r} is not a number of actions, from 1 on")
    return int(text)


for _number in range(_count()):
    action(action_ref(_number), pool=POOL)(run)
