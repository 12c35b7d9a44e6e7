"""What the workers of the crash suite serve. Each run writes its lines in the file `CRASH_RECORD`."""

import asyncio
import os
import time
from pathlib import Path
from typing import Literal

from tests.proof.history.runs import note
from turnstile.worker import Context, TemporaryError, action

RECORD = "CRASH_RECORD"
PUPPETS = "puppets"
"""A pool without a worker of ours: the tests themselves claim there, and do what no worker should."""


@action("crash.one", max_concurrent=1)
async def one(context: Context) -> int:
    """Run alone."""
    return await _recorded(context)


@action("crash.two", max_concurrent=2)
def two(context: Context) -> int:
    """Run in a child process, two at once."""
    _note("start", context)
    time.sleep(0.01)
    _note("stop", context)
    return context.execution_id


@action("crash.free")
async def free(context: Context) -> int:
    """Run beside any number of others."""
    return await _recorded(context)


@action("crash.keyed", max_concurrent=1, concurrency_key="/customer")
async def keyed(context: Context, customer: str) -> str:
    """Run alone among those of one customer."""
    await _recorded(context)
    return customer


@action("crash.retried", max_concurrent=1, retry={"max_attempts": 3, "delay": "100ms", "factor": 1})
async def retried(context: Context) -> int:
    """Fail once."""
    await _recorded(context)
    if context.attempt == 1:
        raise TemporaryError("as planned", delay=0.1)
    return context.attempt


@action("crash.gated")
async def gated(context: Context, gate: str) -> None:
    """Run until the gate is open."""
    _note("start", context)
    while not await asyncio.to_thread(Path(gate).exists):
        await asyncio.sleep(0.05)
    _note("stop", context)


@action("crash.puppet", pool=PUPPETS)
async def puppet() -> None:
    """Be claimed by a test."""


@action("crash.abandoned", pool=PUPPETS, on_worker_lost="abandon")
async def abandoned() -> None:
    """Be claimed by a test, and given up with it."""


async def _recorded(context: Context) -> int:
    _note("start", context)
    await asyncio.sleep(0.01)
    _note("stop", context)
    return context.execution_id


def _note(event: Literal["start", "stop"], context: Context) -> None:
    note(os.environ[RECORD], event, context.execution_id, context.attempt)
