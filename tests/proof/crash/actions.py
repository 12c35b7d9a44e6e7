"""The actions of the crash tests. Each logs its runs in the run log."""

from tests.proof.run_log import log_while_blocking, log_while_running, logged_run
from turnstile.worker import Context, TemporaryError, action, use

RUN_SECONDS = 0.01
TALKING_SECONDS = 1.5
"""Longer than the interval at which a worker publishes logs."""
LICENCES = "crash-licences"


@action("crash.one", max_concurrent=1)
async def one(context: Context) -> int:
    """Run alone."""
    return await logged_run(context, RUN_SECONDS)


@action("crash.two", max_concurrent=2)
def two(context: Context) -> int:
    """Run in a child process, two at once."""
    log_while_blocking(context.execution_id, context.attempt, RUN_SECONDS)
    return context.execution_id


@action("crash.free")
async def free(context: Context) -> int:
    """Run without a limit."""
    return await logged_run(context, RUN_SECONDS)


@action("crash.keyed", max_concurrent=1, concurrency_key="/customer")
async def keyed(context: Context, customer: str) -> str:
    """Run alone among those of one customer."""
    await logged_run(context, RUN_SECONDS)
    return customer


@action("crash.retried", max_concurrent=1, retry={"max_attempts": 3, "delay": "100ms", "factor": 1})
async def retried(context: Context) -> int:
    """Fail once."""
    await logged_run(context, RUN_SECONDS)
    if context.attempt == 1:
        raise TemporaryError("planned", delay=0.1)
    return context.attempt


@action("crash.licensed", uses=[use(LICENCES, units=2)])
async def licensed(context: Context) -> int:
    """Run with two licences."""
    return await logged_run(context, RUN_SECONDS)


@action("crash.talking")
async def talking(context: Context) -> None:
    """Log, report progress, and run until both are written."""
    context.logger.info("it runs")
    context.progress(1, 2)
    await log_while_running(context.execution_id, context.attempt, TALKING_SECONDS)
