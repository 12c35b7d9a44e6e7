"""The actions of the steady load, and those of the neighbours.

Each logs its start, and that it runs, in the run log. What has no limit runs in a pool of its own: here no
neighbour is to occupy all workers.
"""

from typing import Any

from tests.proof.run_log import log_while_blocking, logged_run
from turnstile.worker import Context, action


@action("steady.free")
async def free(context: Context, seconds: float) -> int:
    """Run without a limit."""
    return await logged_run(context, seconds)


@action("steady.seven", max_concurrent=7)
async def seven(context: Context, seconds: float) -> int:
    """Run beside six others."""
    return await logged_run(context, seconds)


@action("steady.keyed", max_concurrent=2, concurrency_key="/customer")
async def keyed(context: Context, customer: int, seconds: float) -> int:
    """Run beside one other of the same customer."""
    return await logged_run(context, seconds)


@action("steady.child", max_concurrent=3)
def child(context: Context, seconds: float) -> int:
    """Run in a child process."""
    log_while_blocking(context.execution_id, context.attempt, seconds)
    return context.execution_id


@action("neighbour.reply", max_concurrent=2)
async def reply(context: Context) -> int:
    """Run at once; the answer to its request disturbs."""
    return await logged_run(context, 0.0)


@action("neighbour.huge", max_concurrent=1)
async def huge(context: Context, content: Any) -> int:
    """Take large parameters and do nothing."""
    return await logged_run(context, 0.0)


@action("neighbour.locked", max_concurrent=1)
async def locked(context: Context, seconds: float) -> int:
    """Run alone; the neighbour locks a row of it."""
    return await logged_run(context, seconds)


@action("neighbour.locked-keyed", max_concurrent=1, concurrency_key="/key")
async def locked_keyed(context: Context, key: str, seconds: float) -> int:
    """Run alone among those of its key; the neighbour locks the action's row."""
    return await logged_run(context, seconds)


@action("neighbour.full", max_concurrent=1, max_queued=10, when_full="reject")
async def full(context: Context, seconds: float) -> int:
    """Run alone, and let ten wait."""
    return await logged_run(context, seconds)


@action("neighbour.keyed", max_concurrent=1, concurrency_key="/key", pool="crowd")
async def keyed_once(context: Context, key: str) -> int:
    """Run for a key that is used once."""
    return await logged_run(context, 0.0)


@action("neighbour.callback", pool="crowd")
async def callback(context: Context) -> int:
    """Run at once; the receiver of its webhook never answers."""
    return await logged_run(context, 0.0)
