"""The actions of the steady load, and those of the neighbours.

What has no limit runs in a pool of its own: here no neighbour is to occupy all workers.
"""

from typing import Any

from tests.proof.logged_actions import in_child, in_loop, keyed
from turnstile.worker import Context, action

action("steady.free")(in_loop)
action("steady.seven", max_concurrent=7)(in_loop)
action("steady.keyed", max_concurrent=2, concurrency_key="/key")(keyed)
action("steady.child", max_concurrent=3)(in_child)
# The answer to its request disturbs.
action("neighbour.reply", max_concurrent=2)(in_loop)
# The neighbour locks a row of it, and of the next one that of the action.
action("neighbour.locked", max_concurrent=1)(in_loop)
action("neighbour.locked-keyed", max_concurrent=1, concurrency_key="/key")(keyed)
action("neighbour.full", max_concurrent=1, max_queued=10, when_full="reject")(in_loop)
action("neighbour.keyed", max_concurrent=1, concurrency_key="/key", pool="crowd")(keyed)
# The receiver of its webhook never answers.
action("neighbour.callback", pool="crowd")(in_loop)


@action("neighbour.huge", max_concurrent=1)
async def huge(context: Context, content: Any) -> int:
    """Take large parameters and do nothing."""
    return await in_loop(context)
