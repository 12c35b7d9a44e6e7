"""What the workers serve beside the neighbours: the actions of the steady load, and those of the neighbours.

In: parameters. Out: lines in the run's record. What has no limit runs in a pool of its own: here nobody is to
take the places of the workers.
"""

import asyncio
import time
from typing import Any

from tests.proof.chaos.record import note_seen, note_start, spells
from turnstile.worker import Context, action


@action("steady.free")
async def free(context: Context, seconds: float) -> int:
    """Run beside any number of others."""
    return await _recorded(context, seconds)


@action("steady.seven", max_concurrent=7)
async def seven(context: Context, seconds: float) -> int:
    """Run beside six others."""
    return await _recorded(context, seconds)


@action("steady.keyed", max_concurrent=2, concurrency_key="/customer")
async def keyed(context: Context, customer: int, seconds: float) -> int:
    """Run beside one other of the same customer."""
    return await _recorded(context, seconds)


@action("steady.child", max_concurrent=3)
def child(context: Context, seconds: float) -> int:
    """Run in a child process."""
    note_start(context.execution_id, context.attempt)
    for spell in spells(seconds):
        time.sleep(spell)
        note_seen(context.execution_id, context.attempt)
    return context.execution_id


@action("neighbour.reply", max_concurrent=2)
async def reply(context: Context) -> int:
    """Run at once; the answer to its request is what disturbs."""
    return await _recorded(context, 0.0)


@action("neighbour.huge", max_concurrent=1)
async def huge(context: Context, content: Any) -> int:
    """Take much and do nothing."""
    return await _recorded(context, 0.0)


@action("neighbour.locked", max_concurrent=1)
async def locked(context: Context, seconds: float) -> int:
    """Run alone; somebody locks a row of it."""
    return await _recorded(context, seconds)


@action("neighbour.locked-keyed", max_concurrent=1, concurrency_key="/key")
async def locked_keyed(context: Context, key: str, seconds: float) -> int:
    """Run alone among those of its key; somebody locks the action's row."""
    return await _recorded(context, seconds)


@action("neighbour.full", max_concurrent=1, max_queued=10, when_full="reject")
async def full(context: Context, seconds: float) -> int:
    """Run alone, and let ten wait."""
    return await _recorded(context, seconds)


@action("neighbour.keyed", max_concurrent=1, concurrency_key="/key", pool="crowd")
async def keyed_once(context: Context, key: str) -> int:
    """Run for a key that is used once."""
    return await _recorded(context, 0.0)


@action("neighbour.told", pool="crowd")
async def told(context: Context) -> int:
    """Run at once; whoever is told of the end never answers."""
    return await _recorded(context, 0.0)


@action("neighbour.taken", pool="taken")
async def taken(context: Context) -> int:
    """Run in a pool whose queue somebody takes away."""
    return await _recorded(context, 0.0)


async def _recorded(context: Context, seconds: float) -> int:
    note_start(context.execution_id, context.attempt)
    for spell in spells(seconds):
        await asyncio.sleep(spell)
        note_seen(context.execution_id, context.attempt)
    return context.execution_id
