"""The actions of the crash tests."""

from tests.proof.logged_actions import failing, in_child, in_loop, keyed
from turnstile.worker import Context, action, use

LICENCES = "crash-licences"
TALKING_SECONDS = 1.5
"""Longer than the interval at which a worker publishes logs."""

action("crash.one", max_concurrent=1)(in_loop)
action("crash.two", max_concurrent=2)(in_child)
action("crash.free")(in_loop)
action("crash.keyed", max_concurrent=1, concurrency_key="/key")(keyed)
action("crash.retried", max_concurrent=1, retry={"max_attempts": 3, "delay": "100ms", "factor": 1})(failing)
action("crash.licensed", uses=[use(LICENCES, units=2)])(in_loop)


@action("crash.talking")
async def talking(context: Context, seconds: float) -> int:
    """Log, report progress, and run until both are written."""
    context.logger.info("it runs")
    context.progress(1, 2)
    return await in_loop(context, seconds)
