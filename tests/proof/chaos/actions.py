"""The actions of a run of faults: their parameters say how long to take and how often to fail.

They survive the loss of any number of workers, except `chaos.free`, which is abandoned with the second.
"""

import sys
from typing import Any, Final

from tests.proof.logged_actions import failing, in_child, in_loop, keyed
from turnstile.worker import Context, TemporaryError, action, command_action

_ALWAYS: Final[dict[str, Any]] = {"max_reclaims": 1000}
_RETRY: Final[dict[str, Any]] = {"retry": {"max_attempts": 3, "delay": "200ms", "factor": 1}}

action("chaos.one", max_concurrent=1, **_ALWAYS)(in_loop)
action("chaos.two", max_concurrent=2, **_ALWAYS)(in_child)
# For longer than a lease.
action("chaos.long", **_ALWAYS)(in_child)
action("chaos.seven", max_concurrent=7, **_ALWAYS, **_RETRY)(failing)
# For so short a time that a worker gets many at once.
action("chaos.brisk", max_concurrent=2, **_ALWAYS)(in_loop)
action("chaos.free", max_reclaims=1)(in_loop)
action("chaos.crowd", **_ALWAYS)(in_loop)
action("chaos.keyed", max_concurrent=1, concurrency_key="/key", **_ALWAYS)(keyed)
action("chaos.heavy", **_ALWAYS)(in_loop)
action("chaos.light", **_ALWAYS)(in_loop)
action("chaos.shared", **_ALWAYS)(in_child)
command = command_action(
    "chaos.command", argv=[sys.executable, "-m", "tests.proof.run_log"], max_concurrent=2, **_ALWAYS
)


@action("chaos.mail", **_ALWAYS, **_RETRY)
async def mail(context: Context, seconds: float) -> int:
    """Run with a limit of starts; fail in the first attempt, sometimes."""
    result = await in_loop(context, seconds)
    if context.attempt == 1 and context.execution_id % 7 == 0:
        raise TemporaryError("planned", delay=0.2)
    return result
